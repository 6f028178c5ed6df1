import numpy as np


def classic_ffn(
    x: np.ndarray, w1: np.ndarray, b1: np.ndarray, w2: np.ndarray, b2: np.ndarray, act: str
) -> np.ndarray:
    """y [T, H] of the FFN with two matrices; act is "relu", "gelu" or "gelu_tanh"."""
    ...
