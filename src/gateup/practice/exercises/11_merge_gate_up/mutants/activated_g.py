import numpy as np


def merged(x, w_gate, w_up, w_down):
    w_gate_up = np.concatenate([w_gate, w_up], axis=0)
    g = x @ w_gate_up.T
    g = g * (0.5 * (1 + np.tanh(g / 2)))
    gate, up = np.split(g, 2, axis=-1)
    return w_gate_up, g, (gate * up) @ w_down.T
