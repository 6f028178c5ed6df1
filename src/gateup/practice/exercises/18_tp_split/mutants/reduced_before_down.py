import numpy as np


def tp_swiglu(x, w_gate, w_up, w_down, tp, all_reduce):
    I = w_gate.shape[0]
    n = I // tp

    def everywhere(w):
        parts = []
        for r in range(tp):
            own = slice(r * n, (r + 1) * n)
            wide = np.zeros((len(x), I), x.dtype)
            wide[:, own] = x @ w[own].T
            parts.append(wide)
        return all_reduce(parts)

    gates, ups = everywhere(w_gate), everywhere(w_up)
    parts = []
    for r in range(tp):
        own = slice(r * n, (r + 1) * n)
        a = gates[r][:, own]
        parts.append((a * (0.5 * (1 + np.tanh(a / 2))) * ups[r][:, own]) @ w_down[:, own].T)
    return np.stack(all_reduce(parts))
