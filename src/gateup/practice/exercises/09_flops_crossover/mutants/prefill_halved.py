import numpy as np


def flops(H, I, n_heads, head_dim, context):
    mlp = 6 * H * I
    per_key = 4 * n_heads * head_dim
    token = mlp / per_key
    return np.array([mlp, per_key * context, token, token / 2], dtype=np.float64)
