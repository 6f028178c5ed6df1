import numpy as np


def silu(a):
    return a * (0.5 * (1 + np.tanh(a / 2)))  # sigmoid by tanh: it saturates, exp overflows


def swiglu(x: np.ndarray, w_gate: np.ndarray, w_up: np.ndarray, w_down: np.ndarray) -> np.ndarray:
    """x [..., H], w_gate and w_up [I, H], w_down [H, I] → [..., H]."""
    gate = x @ w_gate.T  # [..., I]
    up = x @ w_up.T  # [..., I]
    return (silu(gate) * up) @ w_down.T  # [..., H]
