import numpy as np


def route(logits, k, renormalise):
    indices = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    e = np.exp(logits)
    w = np.take_along_axis(e / e.sum(axis=-1, keepdims=True), indices, axis=-1)
    return indices, w / w.sum(axis=-1, keepdims=True) if renormalise else w
