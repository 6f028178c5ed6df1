import numpy as np


def reshard(gate_up, down, tp):
    old, _, H = gate_up.shape
    I = old * down.shape[2]
    n = I // tp
    halves = gate_up.reshape(old, 2, I // old, H)
    gate, up = halves[:, 0].reshape(tp, n, H), halves[:, 1].reshape(tp, n, H)
    return np.concatenate([gate, up], axis=1), down.reshape(tp, H, n)
