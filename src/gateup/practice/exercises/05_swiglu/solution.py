import numpy as np


def silu(a):
    return a * (0.5 * (1 + np.tanh(a / 2)))  # sigmoid by tanh: it saturates, exp overflows


def swiglu(x, w_gate, w_up, w_down):
    """x [..., H], w_gate and w_up [I, H], w_down [H, I] → [..., H]."""
    gate = x @ w_gate.T  # [..., I]
    up = x @ w_up.T  # [..., I]
    return (silu(gate) * up) @ w_down.T  # [..., H]
