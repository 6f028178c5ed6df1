import numpy as np


def backward(
    dy: np.ndarray, x: np.ndarray, w_gate: np.ndarray, w_up: np.ndarray, w_down: np.ndarray
) -> tuple[np.ndarray, ...]:
    """(dx [T, H], dw_gate [I, H], dw_up [I, H], dw_down [H, I])"""
    g, u = x @ w_gate.T, x @ w_up.T  # [T, I]
    s = 0.5 * (1 + np.tanh(g / 2))  # sigmoid
    act = g * s

    dp = dy @ w_down  # [T, I]
    du = dp * act
    dg = dp * u * (s * (1 + g * (1 - s)))

    dx = dg @ w_gate + du @ w_up  # two ways lead to x
    return dx, dg.T @ x, du.T @ x, dy.T @ (act * u)
