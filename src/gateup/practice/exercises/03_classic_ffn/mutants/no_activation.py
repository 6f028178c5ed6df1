def classic_ffn(x, w1, b1, w2, b2, act):
    return (x @ w1.T + b1) @ w2.T + b2
