def silu_grad(x):
    return (x > 0).astype(x.dtype)
