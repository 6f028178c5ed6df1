import numpy as np


def moe(x, indices, weights, num_experts, expert):
    flat = indices.ravel()
    y = np.zeros_like(x)
    for e in np.unique(flat):
        pairs = np.flatnonzero(flat == e)
        tokens = pairs % len(x)
        np.add.at(y, tokens, weights.ravel()[pairs, None] * expert(e, x[tokens]))
    return y, np.bincount(flat, minlength=num_experts), np.argsort(flat, kind="stable")
