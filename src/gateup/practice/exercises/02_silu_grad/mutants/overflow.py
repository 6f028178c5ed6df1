import numpy as np


def silu_grad(x):
    e = np.exp(-x.astype(np.float64))
    return ((1 + e + x * e) / (1 + e) ** 2).astype(x.dtype)
