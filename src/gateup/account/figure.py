"""A number with what a reader needs to trust it: unit, kind, formula, numbers, source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["exact", "bound", "estimate"]


@dataclass(frozen=True, slots=True)
class Figure:
    """kind: "exact" follows from shapes and formats; "bound" is never exceeded; "estimate" models
    an allocator or engine, and `source` then says with which error it was measured.

    formula in the field's letters ("3·H·I·L"), numbers the same with values ("3·4096·14336·32").
    """

    value: int | float
    unit: str
    kind: Kind
    formula: str = ""
    numbers: str = ""
    source: str = ""


def worst(*kinds: Kind) -> Kind:
    """The kind of a sum: as good as its weakest part (exact < bound < estimate)."""
    order: tuple[Kind, ...] = ("exact", "bound", "estimate")
    return max(kinds, key=order.index, default="exact")
