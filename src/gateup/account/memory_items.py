"""The pieces a memory plan is made of: items with the phases they are alive in, and their sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gateup.account.figure import Figure, Kind, worst

Group = Literal[
    "weights",
    "kv",
    "mlp",
    "attention",
    "norm",
    "logits",
    "adapter",
    "gradients",
    "optimizer",
    "buffers",
]


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One use of memory, alive in `phases`. group: the bar it belongs to."""

    label: str
    group: Group
    phases: tuple[str, ...]
    figure: Figure

    @property
    def nbytes(self) -> int:
        return int(self.figure.value)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes on the fullest rank. peaks[phase] is the sum of the items alive in it.

    kind   the peak's: as good as its weakest item
    stage  the pipeline stage of the fullest rank
    """

    items: tuple[MemoryItem, ...]
    peaks: dict[str, int]
    peak: int
    peak_phase: str
    kind: Kind
    stage: int = 0

    def alive(self, phase: str) -> tuple[MemoryItem, ...]:
        """The items that make up a phase."""
        return tuple(i for i in self.items if phase in i.phases)

    def by_group(self, phase: str | None = None) -> dict[Group, int]:
        """Bytes by group in `phase` (default: the peak's)."""
        out: dict[Group, int] = {}
        for item in self.alive(phase or self.peak_phase):
            out[item.group] = out.get(item.group, 0) + item.nbytes
        return out


def plan_of(items: Sequence[MemoryItem], phases: Sequence[str], stage: int = 0) -> MemoryPlan:
    """The plan whose peaks are the sums of `items`; the first of equal phases is the peak's."""
    items = tuple(i for i in items if i.nbytes)
    peaks = {p: sum(i.nbytes for i in items if p in i.phases) for p in phases}
    top = max(peaks, key=lambda p: peaks[p])
    kind = worst(*(i.figure.kind for i in items if top in i.phases))
    return MemoryPlan(items, peaks, peaks[top], top, kind, stage)
