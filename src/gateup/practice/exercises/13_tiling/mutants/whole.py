import numpy as np


def tiled(x, w_gate, w_up, w_down, tile):
    a = x @ w_gate.T
    return (a * (0.5 * (1 + np.tanh(a / 2))) * (x @ w_up.T)) @ w_down.T
