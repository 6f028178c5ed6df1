import math

import numpy as np


def roofline(T, H, I, itemsize, peak, bandwidth):
    flops, nbytes = 6 * T * H * I, 3 * H * I + 2 * T * H
    per = 6 * H * I / peak - 2 * H / bandwidth
    ridge = math.ceil(3 * H * I / bandwidth / per) if per > 0 else math.inf
    return np.array([flops, nbytes, max(flops / peak, nbytes / bandwidth), ridge])
