import numpy as np


def ablation(h, w_gate, w_up, w_down, unembed, k):
    a = w_gate @ h
    p = a * (0.5 * (1 + np.tanh(a / 2))) * (w_up @ h)
    top = np.argmax(unembed @ (h + w_down @ p))
    change = p * (unembed[top] @ w_down)
    order = np.argsort(-np.abs(change), kind="stable")[:k]
    p[order] = 0
    return change, order, unembed @ (h + w_down @ p)
