import numpy as np


def lora(
    x: np.ndarray, w: np.ndarray, a: np.ndarray, b: np.ndarray, alpha: float, rslora: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(y [T, out], w_merged [out, in])"""
    ...
