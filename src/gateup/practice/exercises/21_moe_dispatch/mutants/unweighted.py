import numpy as np


def moe(x, indices, weights, num_experts, expert):
    k, flat = indices.shape[1], indices.ravel()
    y = np.zeros_like(x)
    for e in np.unique(flat):
        tokens = np.flatnonzero(flat == e) // k
        y[tokens] += expert(e, x[tokens])
    return y, np.bincount(flat, minlength=num_experts), np.argsort(flat, kind="stable")
