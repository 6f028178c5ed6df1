import numpy as np


def silu(a):
    return a * (0.5 * (1 + np.tanh(a / 2)))


def ablation(h, w_gate, w_up, w_down, unembed, k):
    """(change [I], order [k], logits [V])"""
    p = silu(w_gate @ h) * (w_up @ h)  # [I]
    top = np.argmax(unembed @ (h + w_down @ p))
    change = -p * (unembed[top] @ w_down)  # what each neuron wrote, taken away
    order = np.argsort(-np.abs(change), kind="stable")[:k]
    p[order] = 0
    return change, order, unembed @ (h + w_down @ p)
