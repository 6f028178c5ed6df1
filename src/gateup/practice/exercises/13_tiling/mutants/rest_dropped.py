import numpy as np


def tiled(x, w_gate, w_up, w_down, tile):
    y = np.zeros_like(x)
    for i in range(len(x) // tile):
        rows = slice(i * tile, (i + 1) * tile)
        a = x[rows] @ w_gate.T
        y[rows] = (a * (0.5 * (1 + np.tanh(a / 2))) * (x[rows] @ w_up.T)) @ w_down.T
    return y
