import numpy as np


def silu(x):
    e = np.exp(-np.abs(np.asarray(x, dtype=np.float64)))
    return x * np.where(x >= 0, 1.0, e) / (1 + e)
