"""One way in which a model's files and its description differ, as facts and as a sentence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gateup.files.header import TensorHeader
from gateup.model.spec import TensorSpec

# absent: rows in no file; partly: rows with experts missing; doubled: rows stored more than once;
# shape: tensors of another shape; tower … unknown: tensors outside the description, by what they
# are; unlisted, misplaced: what an index does not bear out; adapter; note: anything else.
Kind = Literal[
    "absent",
    "partly",
    "doubled",
    "shape",
    "tower",
    "beyond",
    "head",
    "recomputed",
    "unknown",
    "unlisted",
    "misplaced",
    "adapter",
    "note",
]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """sentence  as reports print it
    tensors   of the files, at fault
    expected  the shape described for each of `tensors` (kind "shape")
    rows      of the description, at fault; of a GGUF the row each absent tensor is made from
    names     in the files' own dialect, at fault
    """

    kind: Kind
    sentence: str
    tensors: tuple[TensorHeader, ...] = ()
    expected: tuple[tuple[int, ...], ...] = ()
    rows: tuple[TensorSpec, ...] = ()
    names: tuple[str, ...] = ()


def noted(sentences: Iterable[str], kind: Kind = "note") -> tuple[Mismatch, ...]:
    """Sentences without facts behind them."""
    return tuple(Mismatch(kind, s) for s in sentences)


def sentences(mismatches: Iterable[Mismatch]) -> tuple[str, ...]:
    return tuple(m.sentence for m in mismatches)
