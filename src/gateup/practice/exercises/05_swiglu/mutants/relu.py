import numpy as np


def swiglu(x, w_gate, w_up, w_down):
    return (np.maximum(x @ w_gate.T, 0) * (x @ w_up.T)) @ w_down.T
