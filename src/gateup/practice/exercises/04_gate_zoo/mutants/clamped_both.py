import math

import numpy as np

erf = np.vectorize(math.erf, otypes=[np.float64])


def gated(kind, a, b):
    dtype = a.dtype
    a, b = a.astype(np.float64), b.astype(np.float64)

    def sigmoid(v):
        return 0.5 * (1 + np.tanh(v / 2))

    if kind == "gpt_oss":
        a, b = np.clip(a, -7, 7), np.clip(b, -7, 7)
        y = a * sigmoid(1.702 * a) * (b + 1)
    elif kind == "glu":
        y = sigmoid(a) * b
    elif kind == "bilinear":
        y = a * b
    elif kind == "reglu":
        y = np.maximum(a, 0) * b
    elif kind == "geglu":
        y = 0.5 * a * (1 + erf(a / math.sqrt(2))) * b
    elif kind == "geglu_tanh":
        y = 0.5 * a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))) * b
    else:
        y = a * sigmoid(a) * b
    return y.astype(dtype)
