"""How findings name layers and rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateup.model.spec import TensorSpec

SHOWN = 5  # names that a sentence lists before "and 12 more"


def where(rows: Sequence[TensorSpec]) -> str:
    """The layers of rows in words: "layers 3, 5-7", "outside the layers"."""
    layers = sorted({r.layer for r in rows if r.layer is not None})
    outside = [r.role for r in rows if r.layer is None]
    words = [in_layers(layers)] if layers else []
    return " and ".join(words + ([", ".join(outside)] if outside else []))


def in_layers(layers: Iterable[int]) -> str:
    """[3] -> "layer 3", [0, 1, 2, 5] -> "layers 0-2, 5"."""
    numbers = sorted(set(layers))
    return ("layers " if len(numbers) > 1 else "layer ") + spans(numbers)


def spans(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] -> "0-2, 5"."""
    out: list[list[int]] = []
    for n in sorted(numbers):
        if out and n == out[-1][1] + 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    shown = [f"{a}-{b}" if b > a else str(a) for a, b in out]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")


def typed(value: object) -> str:
    """A setting as a JSON file has it: true and false in small letters."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def written(value: float) -> str:
    """A number as a settings file has it: 16777216, 0.7, 1e-05; nowhere 1.67772e+07."""
    if abs(value) < 1e15 and float(value).is_integer():
        return str(int(value))
    return f"{value:.1f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}"
