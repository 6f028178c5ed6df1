"""LoRA adapters between a fused weight and its parts (gate_up ↔ gate and up, qkv ↔ q, k and v).

An adapter is A [r, in] and B [out, r]; what it adds to the weight is scale·B·A [out, in].

- Fused to parts: output rows belong to B alone, so each part takes all of A and its rows of B, at
  the same rank, alpha and scale.
- Parts to fused: their A's stack to [Σr, in] and their B's stand block-diagonally, zeros beside
  them. With n parts of rank r that is rank n·r, and alpha must grow with it to keep the scale:
  n·alpha, with rsLoRA (alpha/√r) √n·alpha. See `fused_alpha`.

Both ways move elements and set zeros, nothing is rounded. Arrays are numpy's or torch's, as in
`gateup.model.layout`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gateup.errors import UsageError
from gateup.model.layout import Array, GateUpLayout, join, library_of, split

Pair = tuple[Array, Array]


def split_gate_up(a: Array, b: Array, layout: GateUpLayout) -> tuple[Pair, Pair]:
    """((A, B) of gate, (A, B) of up) of an adapter on a fused weight.

    a       [r, H]
    b       [2I, r], its rows in the order of `layout` (Phi-3: gate's, then up's)
    Raises UsageError for shapes that are no adapter, a layout that is not fused, an odd width.
    """
    _check(a, b)
    gate, up = split(b, _of_rows(layout))
    return (a, gate), (a, up)


def fuse_gate_up(gate: Pair, up: Pair, layout: GateUpLayout) -> Pair:
    """(A, B) on the fused weight; its rank is the sum of both, its alpha `fused_alpha`.

    gate, up  (A [r, H], B [I, r]) each, with one scale between them
    Raises UsageError for shapes that are no adapter or do not meet.
    """
    b_gate, b_up = gate[1], up[1]
    a = _stacked([gate, up])
    if b_gate.shape[0] != b_up.shape[0]:
        raise UsageError(
            f"gate's B has {b_gate.shape[0]} rows and up's has {b_up.shape[0]}",
            expected="the same number: both projections have I outputs",
        )
    wide_gate = _between(0, b_gate, b_up.shape[1])
    wide_up = _between(b_gate.shape[1], b_up, 0)
    return a, join(wide_gate, wide_up, _of_rows(layout))


def split_rows(a: Array, b: Array, sizes: Sequence[int]) -> list[Pair]:
    """An adapter on parts stacked by rows (qkv: heads·d, kv_heads·d, kv_heads·d), cut apart.

    Raises UsageError where the sizes do not add up to B's rows.
    """
    _check(a, b)
    if sum(sizes) != b.shape[0] or min(sizes, default=0) < 1:
        raise UsageError(
            f"B has {b.shape[0]} rows, the parts {' + '.join(map(str, sizes))}",
            expected="sizes of at least 1 that add up to them",
        )
    parts, start = [], 0
    for size in sizes:
        parts.append((a, b[start : start + size]))
        start += size
    return parts


def fuse_rows(parts: Sequence[Pair]) -> Pair:
    """One adapter on the weight that stacks the parts' by rows; see the module's text."""
    if not parts:
        raise UsageError("there are no adapters to fuse", expected="one or more (A, B)")
    a = _stacked(parts)
    rows, before = [], 0
    for _, b in parts:
        rows.append(_between(before, b, a.shape[0] - before - b.shape[1]))
        before += b.shape[1]
    return a, library_of(a).concatenate(rows, 0)


def fused_alpha(alpha: float, parts: int = 2, *, rslora: bool = False) -> float:
    """alpha of the fused adapter whose `parts` had `alpha` at one rank: the scale stays."""
    return alpha * (math.sqrt(parts) if rslora else parts)


def _of_rows(layout: GateUpLayout) -> GateUpLayout:
    """The layout as B shows it: output rows first whatever the weight's orientation, no experts."""
    return replace(layout, orientation="out_in", stacked=False)


def _check(a: Array, b: Array) -> None:
    for array in (a, b):
        library_of(array)
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
        raise UsageError(
            f"A is {list(a.shape)} and B is {list(b.shape)}", expected="A [r, in] and B [out, r]"
        )


def _stacked(parts: Sequence[Pair]) -> Array:
    """The A's above each other. Raises UsageError where their inputs differ."""
    for a, b in parts:
        _check(a, b)
    widths = {a.shape[1] for a, _ in parts}
    if len(widths) > 1:
        raise UsageError(
            f"the adapters' inputs are {', '.join(map(str, sorted(widths)))} wide",
            expected="one width: parts of a fused weight share their input",
        )
    return library_of(parts[0][0]).concatenate([a for a, _ in parts], 0)


def _between(before: int, b: Array, after: int) -> Array:
    """b [out, r] with that many columns of zeros on either side."""
    library = library_of(b)
    zero = library.zeros_like(b[:, :1])
    return library.concatenate([zero] * before + [b] + [zero] * after, 1)
