import numpy as np


def backward(
    dy: np.ndarray, x: np.ndarray, w_gate: np.ndarray, w_up: np.ndarray, w_down: np.ndarray
) -> tuple[np.ndarray, ...]:
    """(dx [T, H], dw_gate [I, H], dw_up [I, H], dw_down [H, I])"""
    ...
