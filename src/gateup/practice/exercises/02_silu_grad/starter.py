import numpy as np


def silu_grad(x: np.ndarray) -> np.ndarray:
    """The slope of SiLU at every element: x's shape and dtype."""
    ...
