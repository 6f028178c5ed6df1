import numpy as np


def sublayer(
    x: np.ndarray,
    weight: np.ndarray,
    eps: float,
    w_gate: np.ndarray,
    w_up: np.ndarray,
    w_down: np.ndarray,
) -> np.ndarray:
    """x + SwiGLU(RMSNorm(x)): x [T, H] → [T, H] in x's dtype."""
    ...
