import numpy as np


def quantise(x, bits):
    if bits == 8:
        d = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    else:
        at = np.argmax(np.abs(x), axis=-1, keepdims=True)
        d = np.take_along_axis(x, at, axis=-1) / np.float32(-8)
    v = x * np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    if bits == 8:
        q = signed = np.round(v).astype(np.int8)
    else:
        n = np.minimum(15, np.floor(v + np.float32(8.5))).astype(np.uint8)
        q, signed = n[:, :16] | n[:, 16:] << 4, n.astype(np.int8) - 8
    d = d.astype(np.float16)
    return d[:, 0], q, signed.astype(np.float32) * d.astype(np.float32)
