import math

import numpy as np

erf = np.vectorize(math.erf, otypes=[np.float64])


def classic_ffn(x, w1, b1, w2, b2, act):
    v = x @ w1.T
    if act == "relu":
        v = np.maximum(v, 0)
    elif act == "gelu":
        v = 0.5 * v * (1 + erf(v / math.sqrt(2)))
    else:
        v = 0.5 * v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
    return (v @ w2.T).astype(x.dtype)
