"""A weight matrix in the blocks of its file, or repacked for the C++ kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 64  # bytes: a line of the caches, and the widest vector


@dataclass(frozen=True, eq=False, slots=True)
class PackedWeight:
    """A weight matrix [n, k]: n outputs, k inputs.

    type    key of gateup.model.quant.formats.FORMATS
    data    uint8: [n, bytes of a row] as in the file, or [bytes] in the kernels' own order
    terms   0: as in the file; 1 or 2: in the order of the C++ kernels, which take activations for
            quantised weights as so many int8 numbers each. With two a product is as exact as
            int16 makes it, for twice the multiplications and the same bytes of weights
    """

    type: str
    n: int
    k: int
    data: Tensor
    terms: int = 0

    @property
    def native(self) -> bool:
        """Whether it is in the kernels' order."""
        return self.terms > 0

    @property
    def shape(self) -> tuple[int, int]:
        return self.n, self.k

    @property
    def held(self) -> str:
        """ "native" (repacked) or "raw" (as in the file)."""
        return "native" if self.native else "raw"

    def __repr__(self) -> str:
        return f"PackedWeight({self.type}, [{self.n}, {self.k}], {self.held})"


def aligned_memory(size: int) -> Tensor:
    """[size] uint8 on the CPU that begin at a multiple of ALIGNMENT; not touched yet."""
    memory = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
    skip = -memory.data_ptr() % ALIGNMENT
    return memory[skip : skip + size]


def aligned(data: Tensor) -> Tensor:
    """`data` (uint8), or a copy in aligned memory where it lies on the CPU and elsewhere in it."""
    if data.device.type != "cpu" or data.data_ptr() % ALIGNMENT == 0:
        return data
    return aligned_memory(data.numel()).view(data.shape).copy_(data)
