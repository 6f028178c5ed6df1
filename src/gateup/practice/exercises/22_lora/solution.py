import math

import numpy as np


def lora(
    x: np.ndarray, w: np.ndarray, a: np.ndarray, b: np.ndarray, alpha: float, rslora: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(y [T, out], w_merged [out, in])"""
    r = a.shape[0]
    # A Python float: it leaves the arrays' dtype alone, where np.float64 would widen them.
    scale = alpha / math.sqrt(r) if rslora else alpha / r
    return x @ w.T + scale * ((x @ a.T) @ b.T), w + scale * (b @ a)
