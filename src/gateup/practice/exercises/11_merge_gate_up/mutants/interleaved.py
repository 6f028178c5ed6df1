import numpy as np


def merged(x, w_gate, w_up, w_down):
    w_gate_up = np.stack([w_gate, w_up], axis=1).reshape(-1, w_gate.shape[1])
    g = x @ w_gate_up.T
    gate, up = g[:, ::2], g[:, 1::2]
    return w_gate_up, g, (gate * (0.5 * (1 + np.tanh(gate / 2))) * up) @ w_down.T
