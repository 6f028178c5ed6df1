import math

import numpy as np

erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(v):
    return 0.5 * (1 + np.tanh(v / 2))  # tanh saturates where exp would overflow


def gelu_tanh(a):
    return 0.5 * a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))


ACTIVATIONS = {
    "glu": sigmoid,
    "bilinear": lambda a: a,
    "reglu": lambda a: np.maximum(a, 0),
    "geglu": lambda a: 0.5 * a * (1 + erf(a / math.sqrt(2))),
    "geglu_tanh": gelu_tanh,
    "swiglu": lambda a: a * sigmoid(a),
    "gpt_oss": lambda a: a * sigmoid(1.702 * a),
}


def gated(kind: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """act(a) · b for the unit named `kind`: the shape and dtype of a and b."""
    dtype = a.dtype
    a, b = a.astype(np.float64), b.astype(np.float64)
    if kind == "gpt_oss":
        a, b = np.minimum(a, 7), np.clip(b, -7, 7) + 1
    return (ACTIVATIONS[kind](a) * b).astype(dtype)
