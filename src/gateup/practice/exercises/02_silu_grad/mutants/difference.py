import numpy as np


def silu_grad(x):
    wide = x.astype(np.float64)
    h = 1e-3

    def silu(v):
        return v * 0.5 * (1 + np.tanh(v / 2))

    return ((silu(wide + h) - silu(wide)) / h).astype(x.dtype)
