import numpy as np


def sublayer(x, weight, eps, w_gate, w_up, w_down):
    dtype = x.dtype
    x, weight, w_gate, w_up, w_down = (
        v.astype(np.float64) for v in (x, weight, w_gate, w_up, w_down)
    )
    c = x - x.mean(axis=-1, keepdims=True)
    n = c / np.sqrt(np.mean(c * c, axis=-1, keepdims=True) + eps) * weight
    a = n @ w_gate.T
    return (x + (a * (0.5 * (1 + np.tanh(a / 2))) * (n @ w_up.T)) @ w_down.T).astype(dtype)
