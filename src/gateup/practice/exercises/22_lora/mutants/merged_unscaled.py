def lora(x, w, a, b, alpha, rslora):
    r = a.shape[0]
    scale = alpha / r**0.5 if rslora else alpha / r
    return x @ w.T + scale * ((x @ a.T) @ b.T), w + b @ a
