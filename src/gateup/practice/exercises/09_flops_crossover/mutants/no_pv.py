import numpy as np


def flops(H, I, n_heads, head_dim, context):
    mlp = 6 * H * I
    per_key = 2 * n_heads * head_dim
    return np.array([mlp, per_key * context, mlp / per_key, 2 * mlp / per_key], dtype=np.float64)
