import math

import numpy as np


def roofline(T, H, I, itemsize, peak, bandwidth):
    flops, nbytes = 6 * T * H * I, itemsize * 3 * H * I
    ridge = math.ceil(peak * itemsize / (2 * bandwidth))
    return np.array([flops, nbytes, max(flops / peak, nbytes / bandwidth), ridge])
