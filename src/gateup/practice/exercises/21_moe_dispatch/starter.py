import numpy as np


def moe(
    x: np.ndarray, indices: np.ndarray, weights: np.ndarray, num_experts: int, expert
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(y [T, H], counts [E], order [T·k]); each expert that has tokens runs once."""
    ...
