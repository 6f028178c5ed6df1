import numpy as np


def tp_swiglu(
    x: np.ndarray, w_gate: np.ndarray, w_up: np.ndarray, w_down: np.ndarray, tp: int, all_reduce
) -> np.ndarray:
    """[tp, T, H]: what each of tp ranks holds after one all-reduce."""
    ...
