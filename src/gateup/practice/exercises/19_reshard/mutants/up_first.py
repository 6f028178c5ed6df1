import numpy as np


def reshard(gate_up, down, tp):
    old, _, H = gate_up.shape
    I = old * down.shape[2]
    n = I // tp
    halves = gate_up.reshape(old, 2, I // old, H)
    gate, up = halves[:, 0].reshape(tp, n, H), halves[:, 1].reshape(tp, n, H)
    whole = down.transpose(1, 0, 2).reshape(H, I)
    return np.concatenate([up, gate], axis=1), whole.reshape(H, tp, n).transpose(1, 0, 2)
