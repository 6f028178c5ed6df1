import numpy as np


def route(logits, k, renormalise):
    indices = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    top = np.take_along_axis(logits, indices, axis=-1)
    e = np.exp(top - top[:, :1])
    return indices, e / e.sum(axis=-1, keepdims=True)
