import numpy as np


def moe(
    x: np.ndarray, indices: np.ndarray, weights: np.ndarray, num_experts: int, expert
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(y [T, H], counts [E], order [T·k]); each expert that has tokens runs once."""
    k = indices.shape[1]
    flat = indices.ravel()  # pair p = t·k + j
    order = np.argsort(flat, kind="stable")
    counts = np.bincount(flat, minlength=num_experts)

    y = np.zeros_like(x)
    for e, pairs in enumerate(np.split(order, np.cumsum(counts)[:-1])):
        if pairs.size:
            tokens = pairs // k  # all different: a token meets an expert once
            y[tokens] += weights.ravel()[pairs, None] * expert(e, x[tokens])
    return y, counts, order
