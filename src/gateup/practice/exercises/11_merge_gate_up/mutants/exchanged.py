import numpy as np


def merged(x, w_gate, w_up, w_down):
    w_gate_up = np.concatenate([w_up, w_gate], axis=0)
    g = x @ w_gate_up.T
    first, second = np.split(g, 2, axis=-1)
    return w_gate_up, g, (first * (0.5 * (1 + np.tanh(first / 2))) * second) @ w_down.T
