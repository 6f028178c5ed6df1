import numpy as np


def flops(H: int, I: int, n_heads: int, head_dim: int, context: int) -> np.ndarray:
    """float64 [4]: MLP FLOPs, score FLOPs at `context`, T* of a token, T* of a prefill."""
    ...
