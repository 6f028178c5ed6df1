import numpy as np


def flops(H: int, I: int, n_heads: int, head_dim: int, context: int) -> np.ndarray:
    """float64 [4]: MLP FLOPs, score FLOPs at `context`, T* of a token, T* of a prefill."""
    mlp = 2 * 3 * H * I
    per_key = 2 * 2 * n_heads * head_dim  # QK^T and PV
    token = mlp / per_key
    return np.array([mlp, per_key * context, token, 2 * token], dtype=np.float64)
