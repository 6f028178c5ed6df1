import numpy as np


def silu(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, x.dtype.type(1), e) / (1 + e)
