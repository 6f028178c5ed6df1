import numpy as np


def silu(a):
    return a * (0.5 * (1 + np.tanh(a / 2)))


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def sublayer(
    x: np.ndarray,
    weight: np.ndarray,
    eps: float,
    w_gate: np.ndarray,
    w_up: np.ndarray,
    w_down: np.ndarray,
) -> np.ndarray:
    """x + SwiGLU(RMSNorm(x)): x [T, H] → [T, H] in x's dtype."""
    dtype = x.dtype
    # float16 squares overflow from 256 on: widen first, round once at the end.
    x, weight, w_gate, w_up, w_down = (
        v.astype(np.promote_types(dtype, np.float32)) for v in (x, weight, w_gate, w_up, w_down)
    )
    n = rms_norm(x, weight, eps)
    y = x + (silu(n @ w_gate.T) * (n @ w_up.T)) @ w_down.T
    return y.astype(dtype)
