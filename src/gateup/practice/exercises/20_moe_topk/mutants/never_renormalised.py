import numpy as np


def route(logits, k, renormalise):
    indices = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return indices, np.take_along_axis(e / e.sum(axis=-1, keepdims=True), indices, axis=-1)
