import numpy as np


def swiglu(x: np.ndarray, w_gate: np.ndarray, w_up: np.ndarray, w_down: np.ndarray) -> np.ndarray:
    """x [..., H], w_gate and w_up [I, H], w_down [H, I] → [..., H]."""
    ...
