import numpy as np


def merged(x, w_gate, w_up, w_down):
    w_gate_up = np.concatenate([w_up, w_gate], axis=0)
    g = x @ w_gate_up.T
    up, gate = np.split(g, 2, axis=-1)
    return w_gate_up, g, (gate * (0.5 * (1 + np.tanh(gate / 2))) * up) @ w_down.T
