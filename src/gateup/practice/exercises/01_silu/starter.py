import numpy as np


def silu(x: np.ndarray) -> np.ndarray:
    """x · σ(x), element by element; same shape and dtype as x."""
    ...
