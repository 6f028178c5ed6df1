import numpy as np


def swiglu(x, w_gate, w_up, w_down):
    a = x @ w_gate.T
    return ((0.5 * (1 + np.tanh(a / 2))) * (x @ w_up.T)) @ w_down.T
