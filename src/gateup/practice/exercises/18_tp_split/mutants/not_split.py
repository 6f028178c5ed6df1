import numpy as np


def tp_swiglu(x, w_gate, w_up, w_down, tp, all_reduce):
    a = x @ w_gate.T
    y = (a * (0.5 * (1 + np.tanh(a / 2))) * (x @ w_up.T)) @ w_down.T
    return np.stack([total / x.dtype.type(tp) for total in all_reduce([y] * tp)])
