import numpy as np


def reshard(gate_up: np.ndarray, down: np.ndarray, tp: int) -> tuple[np.ndarray, np.ndarray]:
    """(gate_up [tp, 2I/tp, H], down [tp, H, I/tp]) from any other number of ranks."""
    old, _, H = gate_up.shape
    I = old * down.shape[2]
    n = I // tp  # neurons of a new rank

    halves = gate_up.reshape(old, 2, I // old, H)
    gate, up = halves[:, 0].reshape(I, H), halves[:, 1].reshape(I, H)
    cut = np.stack([gate.reshape(tp, n, H), up.reshape(tp, n, H)], axis=1)  # [tp, 2, n, H]

    whole = down.transpose(1, 0, 2).reshape(H, I)
    return cut.reshape(tp, 2 * n, H), whole.reshape(H, tp, n).transpose(1, 0, 2)
