"""How gate and up lie in memory (declared per family, never guessed from shapes).

The layout algebra: `split` and `join` one tensor, `convert` between any two layouts, `shard` and
`merge` for tensor parallelism. All of it only moves elements, so every conversion is lossless and
undone by the opposite one. Arrays are numpy's or torch's (neither is imported here): what is used
is their slicing, `swapaxes`, and their library's `concatenate` and `stack`.

Letters: E experts, I intermediate_size, H hidden_size. "Canonical" below is gate [I, H] and
up [I, H] apart, as torch's Linear stores them; a leading axis E where experts are stacked.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gateup.errors import UsageError

Form = Literal["split", "concat", "interleaved"]
Order = Literal["gate_up", "up_gate"]
Orientation = Literal["out_in", "in_out"]
Kind = Literal["weight", "bias"]
Scales = Literal["rows", "halves"]
Array = Any


@dataclass(frozen=True, slots=True)
class GateUpLayout:
    """Layout of one MLP's (or one MoE layer's) gate and up projections.

    form         "split": two tensors; "concat": one tensor, halves; "interleaved": neighbours
    order        which comes first along the output axis
    orientation  "out_in": [out, in] as torch's Linear; "in_out": [in, out] (gpt-oss, llama4)
    stacked      a leading expert axis [E, ...] in one tensor (False: one tensor per expert)
    bias         biases go with the weights, in the same form and order
    scales       quantisation scales: "rows": [out, groups], lying as the weights do and moving
                 with their rows; "halves": one per projection ([2], or [E, 2]), in the same
                 order; None: none
    clamp        gate is cut above at clamp, up at ±clamp, before the activation
    alpha        the activation is gate·sigmoid(alpha·gate) (1 would be SiLU)
    offset       up + offset is what multiplies
    """

    form: Form = "split"
    order: Order = "gate_up"
    orientation: Orientation = "out_in"
    stacked: bool = False
    bias: bool = False
    scales: Scales | None = None
    clamp: float | None = None
    alpha: float | None = None
    offset: float = 0.0


SPLIT = GateUpLayout()


def split(fused: Array, layout: GateUpLayout, kind: Kind = "weight") -> tuple[Array, Array]:
    """(gate, up) of one fused tensor, canonical.

    fused  weight [2I, H] or [H, 2I] by the layout's orientation, bias [2I]; E in front if stacked
    Raises UsageError for a layout that is not fused, a wrong rank, an odd width.
    """
    if layout.form == "split":
        raise UsageError(
            "gate and up are apart in this layout, there is nothing to split",
            expected='a layout of form "concat" or "interleaved"',
        )
    rows = _output_first(fused, layout, kind, "gate_up")
    axis = -2 if kind == "weight" else -1
    width = rows.shape[axis]
    if width % 2:
        raise UsageError(
            f"gate_up has {width} output rows, an odd number: it cannot hold gate and up",
            expected="2·I rows",
        )
    half = width // 2
    if layout.form == "concat":
        cuts = slice(None, half), slice(half, None)
    else:
        cuts = slice(None, None, 2), slice(1, None, 2)
    first, second = (_cut(rows, axis, cut) for cut in cuts)
    return (first, second) if layout.order == "gate_up" else (second, first)


def join(gate: Array, up: Array, layout: GateUpLayout, kind: Kind = "weight") -> Array:
    """The fused tensor of canonical gate and up; `split` undoes it.

    Raises UsageError for a layout that is not fused, a wrong rank, shapes that differ.
    """
    if layout.form == "split":
        raise UsageError(
            "gate and up stay apart in this layout, there is nothing to join",
            expected='a layout of form "concat" or "interleaved"',
        )
    canonical = replace(layout, orientation="out_in")
    for name, half in (("gate", gate), ("up", up)):
        _output_first(half, canonical, kind, name)
    if tuple(gate.shape) != tuple(up.shape):
        raise UsageError(
            f"gate is {list(gate.shape)} and up is {list(up.shape)}",
            expected="the same shape for both",
        )
    halves = [gate, up] if layout.order == "gate_up" else [up, gate]
    library = library_of(gate)
    axis = gate.ndim - (2 if kind == "weight" else 1)
    if layout.form == "concat":
        fused = library.concatenate(halves, axis)
    else:
        # [.., I, 2, ..] read in order is first, second, first, second along the output axis.
        pairs = library.stack(halves, axis + 1)
        shape = [*gate.shape]
        shape[axis] *= 2
        fused = pairs.reshape(shape)
    if kind == "weight" and layout.orientation == "in_out":
        return fused.swapaxes(-1, -2)
    return fused


def convert(tensors: Mapping[str, Array], src: GateUpLayout, dst: GateUpLayout) -> dict[str, Array]:
    """The same projections in another layout, every element kept.

    tensors  "gate" and "up", or "gate_up" where the form is fused; with "_bias" and "_scales"
             behind the name what goes with them. Experts: one array with a leading axis where
             stacked, else a list with one array per expert; a dense MLP is one plain array.
    Returns the tensors under the names of `dst`.

    Raises UsageError for missing or unknown names, wrong ranks, shapes that do not fit.
    """
    out: dict[str, Array] = {}
    for suffix in _suffixes(tensors, src):
        kind: Kind = "bias" if suffix == "_bias" else "weight"
        if suffix == "_scales" and src.scales == "halves":
            halves = _scale_halves(tensors, src)
        else:
            halves = _canonical(tensors, src, suffix, kind)
        halves = [_restack(half, src, dst) for half in halves]
        if suffix == "_scales" and src.scales == "halves":
            out.update(_name_scales(halves, dst))
        else:
            out.update(_laid_out(halves, dst, suffix, kind))
    return out


def shard(
    tensors: Mapping[str, Array], layout: GateUpLayout, tp: int, rank: int
) -> dict[str, Array]:
    """What tensor-parallel rank `rank` of `tp` holds: its rows of gate and the same rows of up.

    In the same layout. Cutting a concatenated tensor in two instead would give rank 0 all gate
    rows: it loads, and computes garbage.

    Raises UsageError where I is not a multiple of `tp`, with the numbers.
    """
    if tp < 1 or not 0 <= rank < tp:
        raise UsageError(f"rank {rank} of {tp}", expected="a rank from 0 to tp - 1, tp at least 1")
    apart = replace(layout, form="split", orientation="out_in")
    halves = convert(tensors, layout, apart)
    out: dict[str, Array] = {}
    for name, half in halves.items():
        if name.endswith("_scales") and layout.scales == "halves":
            out[name] = half  # one number for the projection, the same on every rank
        else:
            axis = -1 if name.endswith("_bias") else -2
            out[name] = _each(half, lambda x, axis=axis: _rows_of(x, axis, tp, rank))
    return convert(out, apart, layout)


def merge(shards: Sequence[Mapping[str, Array]], layout: GateUpLayout) -> dict[str, Array]:
    """The whole tensors from every rank's shard, in rank order; undoes `shard`.

    Gate rows of all ranks first, then up rows, each laid out again: not a plain concatenation.
    """
    if not shards:
        raise UsageError("no shards to merge", expected="one per rank")
    apart = replace(layout, form="split", orientation="out_in")
    ranks = [convert(s, layout, apart) for s in shards]
    if any(set(r) != set(ranks[0]) for r in ranks):
        raise UsageError(
            "the shards hold different tensors",
            expected=", ".join(sorted(ranks[0])) + " in each",
        )
    out: dict[str, Array] = {}
    for name, first in ranks[0].items():
        parts = [r[name] for r in ranks]
        if name.endswith("_scales") and layout.scales == "halves":
            out[name] = first
        elif isinstance(first, list):
            out[name] = [_glue(list(x), name) for x in zip(*parts, strict=True)]
        else:
            out[name] = _glue(parts, name)
    return convert(out, apart, layout)


# ---- pieces ------------------------------------------------------------------------------------


def library_of(array: Array) -> Any:
    """The module that made the array: numpy or torch."""
    module = sys.modules.get(type(array).__module__.partition(".")[0])
    if not hasattr(module, "concatenate") or not hasattr(array, "swapaxes"):
        raise UsageError(
            f"{type(array).__name__} is not an array that can be laid out",
            expected="a numpy array or a torch tensor",
        )
    return module


def _cut(array: Array, axis: int, cut: slice) -> Array:
    return array[(..., cut) if axis == -1 else (..., cut, slice(None))]


def _output_first(array: Array, layout: GateUpLayout, kind: Kind, name: str) -> Array:
    """The array with its output axis where the canonical form has it, its rank checked."""
    library_of(array)
    rank = (2 if kind == "weight" else 1) + layout.stacked
    if array.ndim != rank:
        axes = {"weight": "[out, in]", "bias": "[out]"}[kind]
        raise UsageError(
            f"{name} has {array.ndim} axes: {list(array.shape)}",
            expected=f"{rank}: {axes}" + (" behind the expert axis" if layout.stacked else ""),
        )
    if kind == "weight" and layout.orientation == "in_out":
        return array.swapaxes(-1, -2)
    return array


def _suffixes(tensors: Mapping[str, Array], layout: GateUpLayout) -> list[str]:
    """Which of "", "_bias", "_scales" the tensors come with; names that do not fit are refused."""
    stems = ("gate", "up") if layout.form == "split" else ("gate_up",)
    allowed = [s for s in ("", "_bias", "_scales") if s != "_scales" or layout.scales]
    found = [s for s in allowed if any(stem + s in tensors for stem in stems)]
    wanted = {stem + s for s in found or [""] for stem in stems}
    if set(tensors) != wanted:
        raise UsageError(
            "tensors " + (", ".join(sorted(tensors)) or "(none)"),
            expected=", ".join(sorted(wanted)) + f" for the form {layout.form!r}",
        )
    return found


def _each(value: Array, change: Any) -> Array:
    """`change` on the array, or on each expert's where they are a list."""
    return [change(x) for x in value] if isinstance(value, list | tuple) else change(value)


def _canonical(
    tensors: Mapping[str, Array], src: GateUpLayout, suffix: str, kind: Kind
) -> list[Array]:
    """[gate, up], each canonical: an array, or a list of them, one per expert."""
    if src.form == "split":
        return [
            _each(
                tensors[stem + suffix],
                lambda x, name=stem + suffix: _output_first(x, src, kind, name),
            )
            for stem in ("gate", "up")
        ]
    fused = tensors["gate_up" + suffix]
    if not isinstance(fused, list | tuple):
        return list(split(fused, src, kind))
    pairs = [split(x, src, kind) for x in fused]
    return [[gate for gate, _ in pairs], [up for _, up in pairs]]


def _restack(half: Array, src: GateUpLayout, dst: GateUpLayout) -> Array:
    """Experts as one array or as a list, by what `dst` wants."""
    listed = isinstance(half, list | tuple)
    if src.stacked and listed:
        raise UsageError(
            f"a list of {len(half)} experts in a stacked layout", expected="one array [E, ...]"
        )
    if src.stacked == dst.stacked:
        return half
    if src.stacked:
        return [half[e] for e in range(half.shape[0])]
    if not listed or not half:
        raise UsageError(
            "a stacked layout holds experts, and these tensors are one dense MLP's",
            expected="a list with one array per expert",
        )
    shapes = {tuple(x.shape) for x in half}
    if len(shapes) > 1:
        raise UsageError(
            "experts differ in shape: " + " and ".join(str(list(s)) for s in sorted(shapes)),
            expected="one shape for all",
        )
    return library_of(half[0]).stack(list(half), 0)


def _laid_out(
    halves: Sequence[Array], dst: GateUpLayout, suffix: str, kind: Kind
) -> Iterator[tuple[str, Array]]:
    """The canonical halves under `dst`'s names and in its form."""
    gate, up = halves
    if dst.form == "split":
        flip = kind == "weight" and dst.orientation == "in_out"
        for stem, half in (("gate", gate), ("up", up)):
            yield stem + suffix, _each(half, lambda x: x.swapaxes(-1, -2) if flip else x)
    elif isinstance(gate, list | tuple):
        pairs = zip(gate, up, strict=True)
        yield "gate_up" + suffix, [join(g, u, dst, kind) for g, u in pairs]
    else:
        yield "gate_up" + suffix, join(gate, up, dst, kind)


def _scale_halves(tensors: Mapping[str, Array], src: GateUpLayout) -> list[Array]:
    """[gate's, up's] scale, one number each ([E] of them if stacked), from [2] or [E, 2]."""
    if src.form == "split":
        return [tensors["gate_scales"], tensors["up_scales"]]
    places = (0, 1) if src.order == "gate_up" else (1, 0)

    def half(value: Array, place: int) -> Array:
        if value.shape[-1:] != (2,):
            raise UsageError(
                f"gate_up_scales is {list(value.shape)}", expected="two scales, [2] or [E, 2]"
            )
        return value[..., place]

    value = tensors["gate_up_scales"]
    return [_each(value, lambda x, place=place: half(x, place)) for place in places]


def _name_scales(halves: Sequence[Array], dst: GateUpLayout) -> dict[str, Array]:
    gate, up = halves
    if dst.form == "split":
        return {"gate_scales": gate, "up_scales": up}
    first, second = (gate, up) if dst.order == "gate_up" else (up, gate)
    if isinstance(first, list | tuple):
        pairs = zip(first, second, strict=True)
        return {"gate_up_scales": [library_of(a).stack([a, b], -1) for a, b in pairs]}
    return {"gate_up_scales": library_of(first).stack([first, second], -1)}


def _rows_of(array: Array, axis: int, tp: int, rank: int) -> Array:
    """Rows rank·I/tp to (rank + 1)·I/tp along the output axis."""
    width = array.shape[axis]
    if width % tp:
        lower = width // tp * tp
        nearest = f"{lower} or {lower + tp}" if lower else str(tp)
        raise UsageError(
            f"intermediate_size {width} is not a multiple of tensor-parallel degree {tp}",
            expected=f"whole rows for each rank: {width} / {tp} leaves {width % tp} over",
            remedy=f"another degree, or pad with zeros: {nearest} would fit",
        )
    part = width // tp
    return _cut(array, axis, slice(rank * part, (rank + 1) * part))


def _glue(parts: list[Array], name: str) -> Array:
    axis = parts[0].ndim - (1 if name.endswith("_bias") else 2)
    return library_of(parts[0]).concatenate(parts, axis)
