import numpy as np


def silu(x):
    return np.maximum(x, 0)
