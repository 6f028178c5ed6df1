import numpy as np

import gateup
from gateup.lab.handbook.drawing import chart

rng = np.random.default_rng(0)


def silu(a):
    """a·σ(a); by tanh, which overflows nowhere"""
    return a * 0.5 * (1 + np.tanh(a / 2))


def swiglu(x, w_gate, w_up, w_down):
    """x [T, H], w_gate and w_up [I, H], w_down [H, I] -> [T, H]"""
    return (silu(x @ w_gate.T) * (x @ w_up.T)) @ w_down.T


def weights(H, I):
    """Gate, up and down with entries that keep the size of what passes through."""
    shapes = ((I, H), (I, H), (H, I))
    return [rng.normal(size=shape) / shape[1] ** 0.5 for shape in shapes]


x = rng.normal(size=(5, 8))
w = weights(8, 24)
print(swiglu(x, *w).shape)
