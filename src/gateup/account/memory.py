"""Every byte a run needs on the fullest rank, by moment.

A phase is a moment in the run. Each item says in which phases it is alive; a phase's memory is the
sum of those, and the plan's peak is the largest phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gateup.account.activations import (
    attention_transient,
    dtype_bytes,
    logits_transient,
    mlp_transient,
    prefill_tokens,
    stream,
)
from gateup.account.engines import llamacpp_compute_buffer
from gateup.account.figure import Figure, Kind, worst
from gateup.account.kv import kv_nbytes
from gateup.account.parallel import Rank, ranks
from gateup.account.workload import Workload
from gateup.model.quant.formats import FORMATS, StoredTensor
from gateup.model.spec import PARTS, ModelSpec, Part

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

# In the order they happen.
INFERENCE = ("load", "attention", "mlp", "logits", "decode")
LLAMACPP = ("load", "compute")


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


def memory(spec: ModelSpec, stored: Sequence[StoredTensor], workload: Workload) -> MemoryPlan:
    """What `workload` needs with the weights as `stored`: the fullest rank's plan.

    Raises UsageError for a split that shapes or blocks forbid, and for unknown dtypes.
    """
    plans = []
    for rank in ranks(spec, stored, workload.parallel, workload.engine):
        if workload.engine == "llama.cpp":
            plans.append(plan_of(_llamacpp(rank, stored, workload), LLAMACPP, rank.stage))
        else:
            plans.append(plan_of(_inference(rank, stored, workload), INFERENCE, rank.stage))
    return max(plans, key=lambda p: p.peak)


def weight_items(
    rank: Rank, stored: Sequence[StoredTensor], phases: tuple[str, ...]
) -> list[MemoryItem]:
    """Weights on the rank, an item per part; exact where the format stores whole rows."""
    totals: dict[Part, int] = {}
    exact = True
    for tensor in stored:
        part: Part = tensor.row.part if tensor.row else "attention"  # rope tables
        totals[part] = totals.get(part, 0) + rank.nbytes(tensor)
        exact = exact and (tensor.type in FORMATS or rank.parallel.world == 1)
    formula = "Σ bytes of stored tensors"
    if rank.parallel.world > 1:
        formula += ", each by its share of the rank"
    p = rank.parallel
    numbers = f"tp {p.tp}, pp {p.pp}, ep {p.ep}, fsdp {p.fsdp}" if p.world > 1 else ""
    return [
        MemoryItem(
            f"weights: {part}",
            "weights",
            phases,
            Figure(
                totals[part],
                "bytes",
                "exact" if exact else "estimate",
                formula,
                f"{totals[part]} ({numbers})" if numbers else f"{totals[part]}",
                "shapes and block sizes",
            ),
        )
        for part in PARTS
        if part in totals
    ]


def gathered_layer(rank: Rank, stored: Sequence[StoredTensor]) -> int:
    """FSDP: bytes gathered to run the largest unit, a layer, or the tensors outside the layers."""
    units: dict[int | None, int] = {}
    whole = replace(rank, parallel=replace(rank.parallel, fsdp=1))
    for tensor in stored:
        layer = tensor.row.layer if tensor.row else None
        units[layer] = units.get(layer, 0) + whole.nbytes(tensor)
    return max(units.values(), default=0)


def cached_spec(rank: Rank, workload: Workload) -> ModelSpec:
    """The rank's layers as the engine caches them: transformers keeps MLA's expanded K and V."""
    if workload.engine != "transformers":
        return rank.local
    layers = tuple(
        replace(x, attention=replace(x.attention, mla=None, num_kv_heads=x.attention.num_heads))
        if x.attention and x.attention.mla
        else x
        for x in rank.local.layers
    )
    return replace(rank.local, layers=layers)


def _inference(rank: Rank, stored: Sequence[StoredTensor], workload: Workload) -> list[MemoryItem]:
    spec, T = rank.local, prefill_tokens(workload)
    running = INFERENCE[1:]
    items = weight_items(rank, stored, INFERENCE)
    if rank.parallel.fsdp > 1:
        items.append(_gather_item(rank, stored, running))
    kv = kv_nbytes(cached_spec(rank, workload), workload.ctx, workload.kv_type, workload.batch)
    items.append(MemoryItem("KV cache", "kv", running, kv))
    items.append(
        MemoryItem(
            "residual and normed input", "norm", ("attention", "mlp"), stream(spec, workload, T)
        )
    )
    items.append(
        MemoryItem("attention", "attention", ("attention",), attention_transient(spec, workload, T))
    )
    items.append(MemoryItem("MLP", "mlp", ("mlp",), mlp_transient(spec, workload, T)))
    if rank.stage == rank.parallel.pp - 1:
        items.append(
            MemoryItem("logits", "logits", ("logits",), logits_transient(spec, workload, T))
        )
    items.append(MemoryItem("residual", "norm", ("logits",), _residual(spec, workload, T)))
    items.append(MemoryItem("one token", "mlp", ("decode",), _decode(rank, workload)))
    return items


def _gather_item(rank: Rank, stored: Sequence[StoredTensor], phases: tuple[str, ...]) -> MemoryItem:
    size = gathered_layer(rank, stored)
    return MemoryItem(
        "FSDP: the layer in use, gathered",
        "weights",
        phases,
        Figure(
            size,
            "bytes",
            "estimate",
            "largest layer, unsharded",
            str(size),
            "one unit at a time; prefetching the next one adds as much again",
        ),
    )


def _residual(spec: ModelSpec, workload: Workload, tokens: int) -> Figure:
    size = dtype_bytes(workload.compute_dtype, "--dtype")
    return Figure(
        tokens * spec.hidden_size * size,
        "bytes",
        "estimate",
        "T·H·bytes",
        f"{tokens}·{spec.hidden_size}·{size}",
        "the final norm's output",
    )


def _decode(rank: Rank, workload: Workload) -> Figure:
    """One step of decoding: the largest of MLP, attention and logits at T = batch."""
    spec, T = rank.local, workload.batch
    last = rank.stage == rank.parallel.pp - 1
    each = [mlp_transient(spec, workload, T), attention_transient(spec, workload, T)]
    if last:
        each.append(logits_transient(spec, workload, T))
    top = max(each, key=lambda f: f.value)
    base = stream(spec, workload, T)
    return Figure(
        top.value + base.value,
        "bytes",
        "estimate",
        f"{base.formula} + {top.formula}",
        f"{base.numbers} + {top.numbers}",
        top.source,
    )


def _llamacpp(rank: Rank, stored: Sequence[StoredTensor], workload: Workload) -> list[MemoryItem]:
    kv = kv_nbytes(rank.local, workload.ctx, workload.kv_type, workload.batch)
    return [
        *weight_items(rank, stored, LLAMACPP),
        MemoryItem("KV cache", "kv", ("compute",), kv),
        MemoryItem(
            "compute buffer",
            "buffers",
            ("compute",),
            llamacpp_compute_buffer(rank.local, workload),
        ),
    ]
