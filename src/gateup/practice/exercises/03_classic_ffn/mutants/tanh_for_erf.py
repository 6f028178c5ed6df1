import math

import numpy as np


def classic_ffn(x, w1, b1, w2, b2, act):
    v = x @ w1.T + b1
    if act == "relu":
        v = np.maximum(v, 0)
    else:
        v = 0.5 * v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
    return (v @ w2.T + b2).astype(x.dtype)
