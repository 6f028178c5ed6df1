import numpy as np


def quantise(x: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(d float16 [blocks], q int8 [blocks, 32] or uint8 [blocks, 16], back float32)"""
    ...
