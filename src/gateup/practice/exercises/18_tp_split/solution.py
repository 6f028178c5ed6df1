import numpy as np


def silu(a):
    return a * (0.5 * (1 + np.tanh(a / 2)))


def tp_swiglu(
    x: np.ndarray, w_gate: np.ndarray, w_up: np.ndarray, w_down: np.ndarray, tp: int, all_reduce
) -> np.ndarray:
    """[tp, T, H]: what each of tp ranks holds after one all-reduce."""
    n = w_gate.shape[0] // tp  # neurons of a rank
    parts = []
    for rank in range(tp):
        own = slice(rank * n, (rank + 1) * n)
        hidden = silu(x @ w_gate[own].T) * (x @ w_up[own].T)  # [T, I/tp]
        parts.append(hidden @ w_down[:, own].T)  # [T, H], a part of the sum
    return np.stack(all_reduce(parts))
