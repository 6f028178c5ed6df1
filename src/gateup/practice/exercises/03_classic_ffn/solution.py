import math

import numpy as np

erf = np.vectorize(math.erf, otypes=[np.float64])


def relu(v):
    return np.maximum(v, 0)


def gelu(v):
    return 0.5 * v * (1 + erf(v / math.sqrt(2)))


def gelu_tanh(v):
    return 0.5 * v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))


ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh}


def classic_ffn(
    x: np.ndarray, w1: np.ndarray, b1: np.ndarray, w2: np.ndarray, b2: np.ndarray, act: str
) -> np.ndarray:
    """y [T, H] of the FFN with two matrices; act is "relu", "gelu" or "gelu_tanh"."""
    hidden = x @ w1.T + b1  # [T, I]
    hidden = ACTIVATIONS[act](hidden).astype(x.dtype)
    return hidden @ w2.T + b2  # [T, H]
