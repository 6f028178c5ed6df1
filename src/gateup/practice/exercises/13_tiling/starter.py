import numpy as np


def tiled(
    x: np.ndarray, w_gate: np.ndarray, w_up: np.ndarray, w_down: np.ndarray, tile: int
) -> np.ndarray:
    """SwiGLU of x [T, H], at most `tile` rows at a time."""
    ...
