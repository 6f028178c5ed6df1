import numpy as np


def backward(dy, x, w_gate, w_up, w_down):
    g, u = x @ w_gate.T, x @ w_up.T
    s = 0.5 * (1 + np.tanh(g / 2))
    dp = dy @ w_down
    du, dg = dp * g, dp * u * s * (1 + g * (1 - s))
    return dg @ w_gate + du @ w_up, dg.T @ x, du.T @ x, dy.T @ (g * s * u)
