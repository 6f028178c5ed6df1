import numpy as np


def route(logits: np.ndarray, k: int, renormalise: bool) -> tuple[np.ndarray, np.ndarray]:
    """(indices [T, k], weights [T, k]) of the k best experts of each token, best first."""
    indices = np.argsort(-logits, axis=-1, kind="stable")[:, :k]  # stable: ties by index
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    weights = np.take_along_axis(p, indices, axis=-1)
    if renormalise:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return indices, weights
