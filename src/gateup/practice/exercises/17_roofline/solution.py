import math

import numpy as np


def roofline(T: int, H: int, I: int, itemsize: int, peak: float, bandwidth: float) -> np.ndarray:
    """float64 [4]: FLOPs, bytes, seconds, tokens from which the arithmetic decides."""
    flops = 6 * T * H * I
    nbytes = itemsize * (3 * H * I + 2 * T * H)
    seconds = max(flops / peak, nbytes / bandwidth)

    # T·arithmetic = weights + T·vectors, in seconds; each token gains arithmetic - vectors.
    weights = 3 * H * I * itemsize / bandwidth
    per_token = 6 * H * I / peak - 2 * H * itemsize / bandwidth
    ridge = math.ceil(weights / per_token) if per_token > 0 else math.inf
    return np.array([flops, nbytes, seconds, ridge], dtype=np.float64)
