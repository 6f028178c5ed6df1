import numpy as np


def tp_swiglu(x, w_gate, w_up, w_down, tp, all_reduce):
    n, rows = w_gate.shape[0] // tp, w_down.shape[0] // tp
    parts = []
    for r in range(tp):
        own = slice(r * n, (r + 1) * n)
        a = x @ w_gate[own].T
        h = np.zeros((len(x), w_gate.shape[0]), x.dtype)
        h[:, own] = a * (0.5 * (1 + np.tanh(a / 2))) * (x @ w_up[own].T)
        y = np.zeros_like(x)
        cut = slice(r * rows, (r + 1) * rows if r < tp - 1 else None)
        y[:, cut] = h @ w_down[cut].T
        parts.append(y)
    return np.stack(all_reduce(parts))
