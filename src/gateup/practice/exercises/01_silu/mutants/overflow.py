import numpy as np


def silu(x):
    return x / (1 + np.exp(-x))
