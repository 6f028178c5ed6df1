"""Which tensors of an adapter hold nothing but zeros: the one look at data that checks take.

LoRA starts with one half of each pair at zero (B; of an embedding's pair A), so that training
begins at the base model. A half that is zero afterwards was never moved. A tensor with anything in
it is left after its first block; blocks are read one at a time, so memory stays at one block, and
a file that shrinks meanwhile ends the reading instead of the process (a memory map would).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gateup.files.adapter import Adapter
from gateup.files.header import TensorHeader
from gateup.files.opening import open_regular
from gateup.model.quant.formats import FORMATS

BLOCK = 1 << 20
# Most adapters have a value in the first bytes of each B: 272 B's then take 272 short reads.
FIRST = 1 << 12
_ZEROS = bytes(BLOCK)
# Types in which all bits but the sign at 0 is zero.
FLOATS = ("f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2")
_START = re.compile(r".+\.(?:lora_B|lora_embedding_A)(?:\..+)?")


def starts_at_zero(tensor: TensorHeader) -> bool:
    """Whether it is a half that LoRA initialises with zeros: lora_B, or an embedding's A."""
    return _START.fullmatch(tensor.canonical or tensor.name) is not None


def zero_halves(adapter: Adapter) -> tuple[str, ...]:
    """Names of those halves in which every value is zero. Raises InputError."""
    halves = [t for t in adapter.tensors if starts_at_zero(t)]
    return tuple(t.name for t in halves if _all_zero(t))


def _all_zero(tensor: TensorHeader) -> bool:
    """Whether every value is 0 or -0. A tensor without values is not, nor one of whole numbers."""
    if not tensor.nbytes or tensor.type not in FLOATS:
        return False
    handle, _ = open_regular(tensor.file)
    with handle:
        handle.seek(tensor.offset)
        left, size = tensor.nbytes, FIRST
        while left:
            block = handle.read(min(size, left))
            if not block or not _zeros(block, FORMATS[tensor.type].block_bytes):
                return False
            left -= len(block)
            size = BLOCK
    return True


def _zeros(block: bytes, width: int) -> bool:
    """Whether the little-endian values of `width` bytes are all 0 or -0."""
    if block == _ZEROS[: len(block)]:
        return True
    rest: Sequence[bytes] = [block[i::width] for i in range(width)]
    return not any(part.strip(b"\0") for part in rest[:-1]) and not rest[-1].strip(b"\0\x80")
