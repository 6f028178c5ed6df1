"""Block formats: how many bytes a row of weights takes in each storage type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from gateup.errors import UsageError
from gateup.model.spec import TensorSpec


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """`block_bytes` bytes for every `block_size` consecutive elements of a row."""

    name: str
    block_size: int
    block_bytes: int

    @property
    def bits(self) -> float:
        """Bits per weight."""
        return 8 * self.block_bytes / self.block_size


# Sizes [source]: ggml-common.h's block structs (the gguf package carries the same table, a test
# compares).
FORMATS: Mapping[str, BlockFormat] = {
    name: BlockFormat(name, size, nbytes)
    for name, size, nbytes in (
        ("f64", 1, 8),
        ("f32", 1, 4),
        ("f16", 1, 2),
        ("bf16", 1, 2),
        ("f8_e4m3", 1, 1),
        ("f8_e5m2", 1, 1),
        ("f8_e4m3fnuz", 1, 1),
        ("f8_e5m2fnuz", 1, 1),
        ("f8_e8m0", 1, 1),
        ("f6_e2m3", 4, 3),
        ("f6_e3m2", 4, 3),
        ("f4", 2, 1),
        ("c64", 1, 8),
        ("u64", 1, 8),
        ("u32", 1, 4),
        ("u16", 1, 2),
        ("i64", 1, 8),
        ("i32", 1, 4),
        ("i16", 1, 2),
        ("i8", 1, 1),
        ("u8", 1, 1),
        ("bool", 1, 1),
        ("q4_0", 32, 18),
        ("q4_1", 32, 20),
        ("q5_0", 32, 22),
        ("q5_1", 32, 24),
        ("q8_0", 32, 34),
        ("q8_1", 32, 36),
        ("q2_k", 256, 84),
        ("q3_k", 256, 110),
        ("q4_k", 256, 144),
        ("q5_k", 256, 176),
        ("q6_k", 256, 210),
        ("q8_k", 256, 292),
        ("iq1_s", 256, 50),
        ("iq1_m", 256, 56),
        ("iq2_xxs", 256, 66),
        ("iq2_xs", 256, 74),
        ("iq2_s", 256, 82),
        ("iq3_xxs", 256, 98),
        ("iq3_s", 256, 110),
        ("iq4_nl", 32, 18),
        ("iq4_xs", 256, 136),
        ("tq1_0", 256, 54),
        ("tq2_0", 256, 66),
        ("mxfp4", 32, 17),
        ("nvfp4", 64, 36),
        ("q1_0", 128, 18),
    )
}


def format_of(name: str) -> BlockFormat:
    """The format called `name` (any case). Raises UsageError with the list of known ones."""
    found = FORMATS.get(name.lower())
    if found is None:
        raise UsageError(f"storage format {name!r} is not known", expected=", ".join(FORMATS))
    return found


def row_nbytes(fmt: BlockFormat, row_length: int) -> int:
    """Bytes of one row. Raises ValueError when the row is not a whole number of blocks."""
    if row_length % fmt.block_size:
        raise ValueError(
            f"a row of {row_length} is not a multiple of {fmt.name}'s {fmt.block_size}"
        )
    return row_length // fmt.block_size * fmt.block_bytes


def nbytes(fmt: BlockFormat, row_length: int, rows: int) -> int:
    """Bytes of `rows` rows of `row_length` elements."""
    return row_nbytes(fmt, row_length) * rows


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor (or group of `row.copies` like tensors) as it lies in a file or in memory.

    name    the file's own name for it (canonical, or GGUF)
    shape   in the file's order (GGUF: ne reversed, so the last axis is the row in every case)
    type    key of FORMATS, or a composite such as "nf4" or "awq:128" (see mix.py)
    nbytes  payload of all copies, without padding
    params  parameters of the spec it holds (0 for tables that are not parameters)
    row     the spec row it is counted under; None for tensors outside the spec
    """

    name: str
    shape: tuple[int, ...]
    type: str
    nbytes: int
    params: int
    row: TensorSpec | None

    @property
    def active_params(self) -> int:
        if self.row is None or not self.row.experts:
            return self.params
        return self.params // self.row.experts * self.row.active_experts

    @property
    def active_nbytes(self) -> int:
        """Bytes one token makes the machine read: experts not chosen stay unread."""
        if self.row is None or not self.row.experts:
            return self.nbytes
        return self.nbytes // self.row.experts * self.row.active_experts


def stored_as(rows: tuple[TensorSpec, ...], dtype: str) -> tuple[StoredTensor, ...]:
    """Every row in one plain dtype, under its canonical name."""
    fmt = format_of(dtype)
    if fmt.block_size != 1:
        raise UsageError(f"{dtype} is a block format, not a plain dtype")
    return tuple(
        StoredTensor(
            r.name, r.shape, fmt.name, prod(r.shape) * r.copies * fmt.block_bytes, r.params, r
        )
        for r in rows
    )
