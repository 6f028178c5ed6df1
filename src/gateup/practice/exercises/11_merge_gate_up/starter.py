import numpy as np


def merged(
    x: np.ndarray, w_gate: np.ndarray, w_up: np.ndarray, w_down: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(w_gate_up [2I, H], g [T, 2I], y [T, H])"""
    ...
