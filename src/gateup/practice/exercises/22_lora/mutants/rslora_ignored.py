def lora(x, w, a, b, alpha, rslora):
    scale = alpha / a.shape[0]
    return x @ w.T + scale * ((x @ a.T) @ b.T), w + scale * (b @ a)
