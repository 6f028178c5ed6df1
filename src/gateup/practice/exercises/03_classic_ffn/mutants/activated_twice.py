import math

import numpy as np

erf = np.vectorize(math.erf, otypes=[np.float64])


def classic_ffn(x, w1, b1, w2, b2, act):
    def f(v):
        if act == "relu":
            return np.maximum(v, 0)
        if act == "gelu":
            return 0.5 * v * (1 + erf(v / math.sqrt(2)))
        return 0.5 * v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))

    return f(f(x @ w1.T + b1) @ w2.T + b2).astype(x.dtype)
