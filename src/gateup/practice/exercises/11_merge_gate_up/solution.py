import numpy as np


def silu(a):
    return a * (0.5 * (1 + np.tanh(a / 2)))


def merged(
    x: np.ndarray, w_gate: np.ndarray, w_up: np.ndarray, w_down: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(w_gate_up [2I, H], g [T, 2I], y [T, H])"""
    w_gate_up = np.concatenate([w_gate, w_up], axis=0)
    g = x @ w_gate_up.T
    gate, up = np.split(g, 2, axis=-1)
    return w_gate_up, g, (silu(gate) * up) @ w_down.T
