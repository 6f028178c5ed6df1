"""Which rank holds which rows, columns, heads and experts of one layer: the Split page.

The rows are found by cutting a column of row numbers with the layout algebra itself
(`model.layout.shard`), so what is shown is what the library does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from gateup.account.activations import dtype_bytes
from gateup.account.figure import Figure
from gateup.account.ledger import layer_label
from gateup.account.parallel import Misfit, largest_tp, misfits, ranks
from gateup.account.plan import compute_dtype
from gateup.account.report.json_report import layer_kinds
from gateup.account.scenario import stored_in
from gateup.account.workload import Parallel
from gateup.lab.errors import LabError
from gateup.model.layout import GateUpLayout, shard
from gateup.model.quant.formats import StoredTensor
from gateup.model.spec import (
    AttentionSpec,
    ClassicFFNSpec,
    GatedMLPSpec,
    LayerSpec,
    ModelSpec,
    MoESpec,
)

DEGREES = (1, 2, 3, 4, 6, 8, 12, 16)
# First and last of consecutive rows, columns, heads or experts, both included.
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RankPart:
    """What one rank holds of the layer.

    gate, up     rows: of gate_proj and up_proj, or where the two are one tensor both of that one
    down         columns of down_proj
    experts      whole experts, or those of whose width it has a part; None in a dense layer
    heads        query heads
    kv_heads     KV heads, replicated where there are fewer than ranks
    """

    rank: int
    gate: tuple[Range, ...]
    up: tuple[Range, ...]
    down: tuple[Range, ...]
    experts: Range | None
    heads: Range | None
    kv_heads: Range | None


@dataclass(frozen=True)
class Split:
    """One kind of layer, split.

    width    I of the whole MLP (of one expert)
    gated    whether there is a gate; without one `up` is the first matrix and `gate` empty
    layout   how gate and up lie in the file
    faults   what forbids the split; then `parts` is empty and `largest` the largest degree that
             would do
    figures  per rank: bytes of the weights, and what the all-reduce sums
    """

    layers: str
    width: int
    hidden: int
    experts: int
    gated: bool
    layout: GateUpLayout
    parts: tuple[RankPart, ...]
    faults: tuple[Misfit, ...]
    largest: int
    figures: dict[str, Figure]

    @property
    def rows(self) -> int:
        """Rows of the tensor that holds gate, or gate and up."""
        return self.width * (2 if self.gated and self.layout.form != "split" else 1)


def kinds(spec: ModelSpec) -> list[tuple[str, LayerSpec]]:
    """(label, layer) of each kind of layer that has an MLP: "0-2", "3-60"."""
    found: dict[object, list[LayerSpec]] = {}
    for layer, indices in layer_kinds(spec):
        if layer.mlp is not None:
            found.setdefault(layer.mlp, []).extend(spec.layers[i] for i in indices)
    return [(layer_label(x.index for x in same), same[0]) for same in found.values()]


def split(spec: ModelSpec, kind: int, fmt: str, parallel: Parallel, tokens: int) -> Split:
    """The `kind`-th kind of layer over the ranks of `parallel` (tp and ep).

    Raises LabError for a model without MLPs and for more expert ranks than experts.
    """
    every = kinds(spec)
    if not every:
        raise LabError("split", "error.no_mlp", name=spec.name)
    label, layer = every[min(kind, len(every) - 1)]
    stored = stored_in(spec, fmt)
    faults = tuple(misfits(spec, stored, parallel))
    width, experts, mlp = _width(layer)
    gated = isinstance(mlp, GatedMLPSpec)
    layout = mlp.layout if isinstance(mlp, GatedMLPSpec) else GateUpLayout()
    if parallel.ep > 1 and not experts:
        raise LabError("split", "error.no_experts", ep=parallel.ep, layers=label, name=spec.name)
    return Split(
        layers=label,
        width=width,
        hidden=spec.hidden_size,
        experts=experts,
        gated=gated,
        layout=layout,
        parts=() if faults else tuple(_parts(layer, width, experts, layout, parallel)),
        faults=faults,
        largest=largest_tp(spec, stored, parallel) if faults else parallel.tp,
        figures={} if faults else _figures(spec, stored, parallel, tokens),
    )


def _width(layer: LayerSpec) -> tuple[int, int, GatedMLPSpec | ClassicFFNSpec]:
    mlp = layer.mlp
    assert mlp is not None  # kinds() has those with an MLP only
    if isinstance(mlp, MoESpec):
        return mlp.expert.intermediate_size, mlp.num_experts, mlp.expert
    return mlp.intermediate_size, 0, mlp


def _parts(
    layer: LayerSpec, width: int, experts: int, layout: GateUpLayout, parallel: Parallel
) -> Iterable[RankPart]:
    """Every rank's part. Ranks that share an expert are neighbours."""
    degree = parallel.expert_tp if experts else parallel.tp
    gated = isinstance(layer.mlp, (GatedMLPSpec, MoESpec))
    for rank in range(max(parallel.tp, parallel.ep)):
        place = rank % degree
        step = width // degree
        gate, up = _rows(width, layout, degree, place) if gated else ((), ())
        if not gated:
            up = ((place * step, (place + 1) * step - 1),)
        yield RankPart(
            rank,
            gate,
            up,
            ((place * step, (place + 1) * step - 1),),
            _experts(experts, rank // degree, parallel) if experts else None,
            *_heads(layer.attention, parallel.tp, rank),
        )


def _rows(
    width: int, layout: GateUpLayout, degree: int, place: int
) -> tuple[tuple[Range, ...], tuple[Range, ...]]:
    """(rows of gate, rows of up) as numbered in the tensor that holds them, by cutting numbers."""
    plain = replace(layout, orientation="out_in", stacked=False, bias=False, scales=None)
    if plain.form == "split":
        numbers = np.arange(width).reshape(-1, 1)
        cut = shard({"gate": numbers, "up": numbers}, plain, degree, place)
        return _ranges(cut["gate"]), _ranges(cut["up"])
    numbers = np.arange(2 * width).reshape(-1, 1)
    cut = shard({"gate_up": numbers}, plain, degree, place)
    held = cut["gate_up"].ravel()
    if plain.form == "interleaved":
        return _ranges(held), _ranges(held)
    first, second = held[: held.size // 2], held[held.size // 2 :]
    gate, up = (first, second) if plain.order == "gate_up" else (second, first)
    return _ranges(gate), _ranges(up)


def _ranges(numbers: np.ndarray) -> tuple[Range, ...]:
    flat = numbers.ravel()
    cuts = np.flatnonzero(np.diff(flat) != 1) + 1
    return tuple((int(run[0]), int(run[-1])) for run in np.split(flat, cuts) if run.size)


def _experts(experts: int, group: int, parallel: Parallel) -> Range | None:
    """Whole experts in order, the first groups one more where they do not divide."""
    base, more = divmod(experts, parallel.ep)
    start = group * base + min(group, more)
    count = base + (group < more)
    return (start, start + count - 1) if count else None


def _heads(
    attention: AttentionSpec | None, tp: int, rank: int
) -> tuple[Range | None, Range | None]:
    if attention is None or rank >= tp:
        return None, None
    step = attention.num_heads // tp
    heads = (rank * step, (rank + 1) * step - 1)
    if attention.mla:  # the latent is whole on every rank
        return heads, None
    kv = attention.num_kv_heads
    if kv < tp:
        return heads, (rank * kv // tp,) * 2
    return heads, (rank * kv // tp, (rank + 1) * kv // tp - 1)


def _figures(
    spec: ModelSpec, stored: tuple[StoredTensor, ...], parallel: Parallel, tokens: int
) -> dict[str, Figure]:
    (rank,) = ranks(spec, stored, parallel, "transformers")
    exact = "shapes and block sizes; of the fullest rank"
    whole = sum(t.nbytes for t in stored)
    mlp = [t for t in stored if t.row is not None and t.row.part == "mlp"]
    share = f"tp {parallel.tp}, ep {parallel.ep}"
    size, hidden = dtype_bytes(compute_dtype(spec), "--dtype"), spec.hidden_size
    return {
        "weights": Figure(
            sum(rank.nbytes(t) for t in stored),
            "B",
            "exact",
            "Σ stored bytes, each by the rank's share",
            f"{whole} split over {share}",
            exact,
        ),
        "mlp": Figure(
            sum(rank.nbytes(t) for t in mlp),
            "B",
            "exact",
            "Σ stored bytes of the MLPs, each by the rank's share",
            f"{sum(t.nbytes for t in mlp)} split over {share}",
            exact,
        ),
        "all_reduce": Figure(
            tokens * hidden * size,
            "B",
            "exact",
            "T·H·b",
            f"{tokens}·{hidden}·{size}",
            "every rank has its part of y [T, H], and the parts are summed, once a layer",
        ),
    }
