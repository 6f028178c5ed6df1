import numpy as np


def swiglu(x, w_gate, w_up, w_down):
    a = (x @ w_gate.T) * (x @ w_up.T)
    return (a * (0.5 * (1 + np.tanh(a / 2)))) @ w_down.T
