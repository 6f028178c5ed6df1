import numpy as np


def roofline(T: int, H: int, I: int, itemsize: int, peak: float, bandwidth: float) -> np.ndarray:
    """float64 [4]: FLOPs, bytes, seconds, tokens from which the arithmetic decides."""
    ...
