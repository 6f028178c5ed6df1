import numpy as np


def reshard(gate_up: np.ndarray, down: np.ndarray, tp: int) -> tuple[np.ndarray, np.ndarray]:
    """(gate_up [tp, 2I/tp, H], down [tp, H, I/tp]) from any other number of ranks."""
    ...
