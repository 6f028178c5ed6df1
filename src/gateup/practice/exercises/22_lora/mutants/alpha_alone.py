def lora(x, w, a, b, alpha, rslora):
    return x @ w.T + alpha * ((x @ a.T) @ b.T), w + alpha * (b @ a)
