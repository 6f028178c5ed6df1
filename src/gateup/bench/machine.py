"""What this machine reaches: multiply-adds of three kinds and reading memory, on given threads."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from gateup.errors import UsageError
from gateup.model.quant.formats import FORMATS
from gateup.ops import native

# Larger than most last-level caches, and read more than once.
READ_BYTES = 1 << 30
SECONDS = 0.15
REPEATS = 5


@dataclass(frozen=True)
class Peaks:
    """Per second on `threads` threads; 0.0: the instruction set has no such instruction.

    fp32, bf16, int8   operations, a multiply-add counting two
    bandwidth          bytes read from memory
    """

    isa: str
    threads: int
    fp32: float
    bf16: float
    int8: float
    bandwidth: float

    def compute(self, kind: str) -> float:
        """Operations a second for weights of a format: in int8 where they are quantised.

        Where the instructions are missing, those of the next wider kind do the work.
        """
        if kind == "bf16":
            return self.bf16 or self.fp32
        return (self.int8 or self.fp32) if FORMATS[kind].block_size > 1 else self.fp32

    def seconds(self, kind: str, nbytes: int, operations: int) -> float:
        """The roofline: no faster than memory delivers, no faster than the units multiply."""
        return max(nbytes / self.bandwidth, operations / self.compute(kind))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_peaks(threads: int) -> Peaks:
    """The best of REPEATS of each rate of computing, the median of reading.

    Raises UsageError without the C++ kernels.
    """
    module, why = native.load()
    if module is None:
        raise UsageError(f"this machine cannot be measured: {why}", remedy=native.REMEDY)
    data = np.ones(READ_BYTES, np.uint8)
    rates = {
        kind: max(float(module.peak(kind, SECONDS, threads)) for _ in range(REPEATS))
        for kind in ("fp32", "bf16", "int8")
    }
    reads = [
        float(module.read_rate(data.ctypes.data, data.nbytes, threads)) for _ in range(REPEATS)
    ]
    return Peaks(str(module.isa()), threads, bandwidth=median(reads), **rates)


def processor() -> str:
    """Its name, where the system says it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
