"""One tensor as a file's header describes it: never its data."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class TensorHeader(NamedTuple):
    """Where a tensor lies and what it is.

    A named tuple, not a dataclass: a 400 GB checkpoint has 91,000 of them, and they are made in
    a quarter of the time.

    name       the file's own name for it
    canonical  the Hub's name for it; of packed weights, scales and the like, the name of the
               weight they belong to; None where the model's description has no such tensor, and
               as long as no description is at hand
    type       key of FORMATS
    shape      in canonical order: the last axis is the row (GGUF's ne reversed)
    offset     from the start of the file, bytes
    nbytes     payload, without padding
    """

    name: str
    canonical: str | None
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    file: Path


def new_header(
    fields: tuple[str, str | None, str, tuple[int, ...], int, int, Path],
) -> TensorHeader:
    """A TensorHeader from all its fields in order, without the call that names them."""
    return tuple.__new__(TensorHeader, fields)


def clip(text: object, limit: int = 80) -> str:
    """`repr` cut to a length that fits into a message (names come from files of any size)."""
    shown = repr(text[: limit + 1] if isinstance(text, str) else text)
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


def listed(names: list[str], limit: int = 5) -> str:
    """The first few names and how many more there are."""
    shown = ", ".join(
        n if n.isprintable() and len(n) <= 120 else clip(n, 120) for n in names[:limit]
    )
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit:,} more"


def many(n: int, noun: str) -> str:
    """1 tensor, 1,025 tensors."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
