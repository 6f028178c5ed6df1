"""Rows of random weights in the formats of GGUF, as a file would store them.

Speed does not depend on what weights are worth, as long as scales are ordinary numbers: codes are
random bytes, scales are set. All implementations get the same bytes. A part is drawn and repeated:
ten thousand rows of new numbers take seconds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gateup.errors import UsageError
from gateup.model.quant import formats
from gateup.model.quant.formats import FORMATS

# Byte offsets in a block of the float16 scales (d and, where there is one, the minimum's).
_SCALES = {
    "q8_0": (0,),
    "q4_0": (0,),
    "q4_1": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "iq4_nl": (0,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
}
# A value of 1/1024 for every scale: products of a few thousand weights stay far from overflow.
_SCALE = np.frombuffer(np.float16(2.0**-10).tobytes(), np.uint8)


def random_rows(kind: str, rows: int, columns: int, seed: int) -> NDArray[np.uint8]:
    """[rows, bytes of a row]. Raises UsageError for a format or width that cannot be.

    kind is a key of gateup.model.quant.formats.FORMATS.
    """
    generator = np.random.default_rng(seed)
    if kind in ("f32", "bf16", "f16"):
        drawn = generator.standard_normal(min(rows * columns, 1 << 20), np.float32)
        values = np.resize(drawn / np.float32(columns**0.5), (rows, columns))
        if kind == "f16":
            return values.astype(np.float16).view(np.uint8)
        if kind == "bf16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.view(np.uint8)
    if kind not in _SCALES:
        raise UsageError(f"{kind!r} cannot be measured", expected=", ".join(known()))
    row_nbytes(kind, columns)
    form = FORMATS[kind]
    blocks = rows * columns // form.block_size
    data = generator.integers(0, 256, (min(blocks, 1 << 16), form.block_bytes), np.uint8)
    for offset in _SCALES[kind]:
        data[:, offset : offset + 2] = _SCALE
    repeated = np.resize(data, (blocks, form.block_bytes))
    return repeated.reshape(rows, -1)


def known() -> tuple[str, ...]:
    """The formats `random_rows` makes."""
    return ("f32", "bf16", "f16", *_SCALES)


def row_nbytes(kind: str, columns: int) -> int:
    """Bytes of a row of `columns` weights. Raises UsageError where blocks do not fill it."""
    form = FORMATS[kind]
    if columns % form.block_size:
        raise UsageError(
            f"rows of {columns} do not divide into {kind}'s blocks of {form.block_size}",
            remedy=f"take a multiple of {form.block_size}",
        )
    return formats.row_nbytes(form, columns)
