import numpy as np


def silu_grad(x: np.ndarray) -> np.ndarray:
    """The slope of SiLU at every element: x's shape and dtype."""
    wide = x.astype(np.float64)
    # exp only ever sees -|x| ≤ 0, so it lies in (0, 1] and cannot overflow.
    e = np.exp(-np.abs(wide))
    s = np.where(wide >= 0, 1 / (1 + e), e / (1 + e))
    # 1 - s is sigmoid(-x): taken from e, it keeps its digits where s rounds to 1.
    t = np.where(wide >= 0, e / (1 + e), 1 / (1 + e))
    return (s * (1 + wide * t)).astype(x.dtype)
