import numpy as np


def inverse(d):
    return np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)


def quantise(x: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(d float16 [blocks], q int8 [blocks, 32] or uint8 [blocks, 16], back float32)"""
    if bits == 8:
        d = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
        v = x * inverse(d)
        n = np.trunc(v + np.copysign(np.float32(0.5), v)).astype(np.int8)  # halves away from 0
        q, signed = n, n
    else:
        at = np.argmax(np.abs(x), axis=-1, keepdims=True)
        d = np.take_along_axis(x, at, axis=-1) / np.float32(-8)
        n = np.minimum(15, np.floor(x * inverse(d) + np.float32(8.5))).astype(np.uint8)
        q, signed = n[:, :16] | n[:, 16:] << 4, n.astype(np.int8) - 8
    stored = d.astype(np.float16)
    return stored[:, 0], q, signed.astype(np.float32) * stored.astype(np.float32)
