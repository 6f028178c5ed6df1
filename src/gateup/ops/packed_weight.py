"""A weight matrix in the blocks of its file, or repacked for the C++ kernels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False, slots=True)
class PackedWeight:
    """A weight matrix [n, k]: n outputs, k inputs.

    type    key of gateup.model.quant.formats.FORMATS
    data    uint8: [n, bytes of a row] as in the file, or [bytes] in the kernels' own order
    native  whether it is in the kernels' order
    """

    type: str
    n: int
    k: int
    data: Tensor
    native: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.n, self.k

    @property
    def held(self) -> str:
        """ "native" (repacked) or "raw" (as in the file)."""
        return "native" if self.native else "raw"

    def __repr__(self) -> str:
        return f"PackedWeight({self.type}, [{self.n}, {self.k}], {self.held})"
