import numpy as np


def silu(a):
    return a * (0.5 * (1 + np.tanh(a / 2)))


def ablation(
    h: np.ndarray,
    w_gate: np.ndarray,
    w_up: np.ndarray,
    w_down: np.ndarray,
    unembed: np.ndarray,
    k: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(change [I], order [k], logits [V])"""
    p = silu(w_gate @ h) * (w_up @ h)  # [I]
    top = np.argmax(unembed @ (h + w_down @ p))
    change = -p * (unembed[top] @ w_down)  # what each neuron wrote, taken away
    order = np.argsort(-np.abs(change), kind="stable")[:k]
    p[order] = 0
    return change, order, unembed @ (h + w_down @ p)
