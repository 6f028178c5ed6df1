import numpy as np


def tp_swiglu(x, w_gate, w_up, w_down, tp, all_reduce):
    n = w_gate.shape[0] // tp
    parts = []
    for r in range(tp):
        own = slice(r * n, (r + 1) * n)
        a = x @ w_gate[own].T
        h = a * (0.5 * (1 + np.tanh(a / 2))) * (x @ w_up[own].T)
        parts.append(h @ w_down[:, own].T)
    return np.stack(parts)
