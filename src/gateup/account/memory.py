"""Every byte a run needs on the fullest rank, by moment.

A phase is a moment in the run. Each item says in which phases it is alive; a phase's memory is the
sum of those, and the plan's peak is the largest phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateup.account.activations import (
    attention_transient,
    dtype_bytes,
    held_scores,
    logits_transient,
    mlp_transient,
    prefill_tokens,
    stream,
)
from gateup.account.engines import llamacpp_compute_buffer
from gateup.account.figure import Figure
from gateup.account.kv import kv_nbytes
from gateup.account.memory_items import Group, MemoryItem, MemoryPlan, plan_of
from gateup.account.parallel import Rank, ranks
from gateup.account.training import PHASES as TRAINING
from gateup.account.training import training_items
from gateup.account.workload import Workload
from gateup.model.quant.formats import FORMATS, StoredTensor
from gateup.model.spec import PARTS, ModelSpec, Part

__all__ = ["Group", "MemoryItem", "MemoryPlan", "memory"]

# In the order they happen.
INFERENCE = ("load", "attention", "mlp", "logits", "decode")
LLAMACPP = ("load", "compute")

# Families whose sliding windows llama.cpp keeps a shorter cache for [source: `swa_type` in its
# src/models, llama-cpp-python 0.3.36]; for others it caches every token.
LLAMACPP_WINDOWS = frozenset(
    {"gemma2", "gemma3", "gemma3_text", "gpt_oss", "llama4", "llama4_text"}
)


def memory(spec: ModelSpec, stored: Sequence[StoredTensor], workload: Workload) -> MemoryPlan:
    """What `workload` needs with the weights as `stored`: the fullest rank's plan.

    Raises UsageError for a split that shapes or blocks forbid, for unknown dtypes and for LoRA
    targets that match nothing.
    """
    plans = []
    for rank in ranks(spec, stored, workload.parallel, workload.engine):
        if workload.training:
            items = weight_items(rank, stored, TRAINING)
            items += gathered(rank, stored, TRAINING[1:-1])
            items += dequantised(
                rank, stored, workload.compute_dtype, ("mlp", "attention", "backward")
            )
            items += training_items(rank, stored, workload)
            plans.append(plan_of(items, TRAINING, rank.stage))
        elif workload.engine == "llama.cpp":
            plans.append(plan_of(_llamacpp(rank, stored, workload), LLAMACPP, rank.stage))
        else:
            plans.append(plan_of(_inference(rank, stored, workload), INFERENCE, rank.stage))
    return max(plans, key=lambda p: p.peak)


def weight_items(
    rank: Rank, stored: Sequence[StoredTensor], phases: tuple[str, ...]
) -> list[MemoryItem]:
    """Weights on the rank, an item per part; exact where the format stores whole rows."""
    totals: dict[Part, int] = {}
    whole: dict[Part, int] = {}
    exact = True
    for tensor in stored:
        part: Part = tensor.row.part if tensor.row else "attention"  # rope tables
        totals[part] = totals.get(part, 0) + rank.nbytes(tensor)
        whole[part] = whole.get(part, 0) + tensor.nbytes
        exact = exact and (tensor.type in FORMATS or rank.parallel.world == 1)
    p = rank.parallel
    split = ", ".join(f"{k} {getattr(p, k)}" for k in ("tp", "pp", "ep", "fsdp"))
    return [
        MemoryItem(
            f"weights: {part}",
            "weights",
            phases,
            Figure(
                totals[part],
                "B",
                "exact" if exact else "estimate",
                "Σ stored bytes" + ("" if p.world == 1 else ", each by the rank's share"),
                f"{whole[part]}" + ("" if p.world == 1 else f" split over {split}"),
                "shapes and block sizes",
            ),
        )
        for part in PARTS
        if part in totals
    ]


def gathered(
    rank: Rank, stored: Sequence[StoredTensor], phases: tuple[str, ...]
) -> list[MemoryItem]:
    """FSDP: what is gathered to run its largest unit, a layer or the tensors outside of them."""
    if rank.parallel.fsdp == 1:
        return []
    units: dict[int | None, int] = {}
    whole = replace(rank, parallel=replace(rank.parallel, fsdp=1))
    for tensor in stored:
        layer = tensor.row.layer if tensor.row else None
        units[layer] = units.get(layer, 0) + whole.nbytes(tensor)
    layer = max(units, key=lambda u: units[u])
    name = "the tensors outside the layers" if layer is None else f"layer {layer}"
    figure = Figure(
        units[layer],
        "B",
        "estimate",
        "largest unit, unsharded",
        f"{units[layer]} ({name})",
        "one unit at a time; prefetching the next one adds as much again",
    )
    return [MemoryItem("FSDP: the unit in use, gathered", "weights", phases, figure)]


def dequantised(
    rank: Rank, stored: Sequence[StoredTensor], compute_dtype: str, phases: tuple[str, ...]
) -> list[MemoryItem]:
    """nf4: bitsandbytes unpacks one matrix at a time into the compute dtype."""
    nf4 = [t for t in stored if t.type.startswith("nf4") and t.row]
    if not nf4:
        return []
    size = dtype_bytes(compute_dtype, "--dtype")
    sizes = [int(t.params // t.row.copies * rank.share(t.row)) for t in nf4 if t.row]
    top = max(sizes)
    figure = Figure(
        top * size,
        "B",
        "estimate",
        "largest matrix·b",
        f"{top}·{size}",
        "bitsandbytes dequantises a matrix for each product",
    )
    return [MemoryItem("one matrix, dequantised", "weights", phases, figure)]


def kv_figure(rank: Rank, workload: Workload) -> Figure:
    """The KV cache on this rank, as the engine keeps it.

    transformers caches MLA's expanded K and V; llama.cpp rounds the context up to 256 cells and
    keeps window + ubatch of them for sliding layers, likewise rounded.
    """
    ctx = workload.ctx
    layers = list(rank.local.layers)
    if workload.engine == "llama.cpp":
        ctx = -(-ctx // 256) * 256
    for i, layer in enumerate(layers):
        a = layer.attention
        if a is None:
            continue
        if workload.engine == "transformers" and a.mla:
            a = replace(a, mla=None, num_kv_heads=a.num_heads)
        elif workload.engine == "llama.cpp" and a.window is not None:
            kept = rank.spec.family in LLAMACPP_WINDOWS
            cells = -(-min(ctx, a.window + workload.ubatch) // 256) * 256
            a = replace(a, window=cells if kept else None)
        layers[i] = replace(layer, attention=a)
    spec = replace(rank.local, layers=tuple(layers))
    return kv_nbytes(spec, ctx, workload.kv_type, workload.batch)


def _inference(rank: Rank, stored: Sequence[StoredTensor], workload: Workload) -> list[MemoryItem]:
    spec, T = rank.local, prefill_tokens(workload)
    running, layer = INFERENCE[1:], ("attention", "mlp")
    hf = workload.engine == "transformers"  # vLLM and gateup rebind the embeddings and the input
    items = [
        *weight_items(rank, stored, INFERENCE),
        *gathered(rank, stored, running),
        MemoryItem("KV cache", "kv", running, kv_figure(rank, workload)),
    ]
    states: list[tuple[str, Group, str, Figure]] = [
        ("hidden states", "norm", "attention", stream(spec, workload, T, 3 if hf else 2)),
        ("attention", "attention", "attention", attention_transient(spec, workload, T)),
        ("hidden states", "norm", "mlp", stream(spec, workload, T, 4 if hf else 2)),
        ("MLP", "mlp", "mlp", mlp_transient(spec, workload, T)),
        ("hidden states", "norm", "logits", stream(spec, workload, T, 1)),
    ]
    if hf and not workload.flash:
        held = held_scores(spec, workload, T)
        states.append(("attention weights, still held", "attention", "mlp", held))
    items += [MemoryItem(label, group, (phase,), f) for label, group, phase, f in states]
    if hf:
        items += dequantised(rank, stored, workload.compute_dtype, layer)
    if rank.stage == rank.parallel.pp - 1:
        logits = logits_transient(spec, workload, T)
        items.append(MemoryItem("logits", "logits", ("logits",), logits))
    items += _decode(rank, workload)
    return items


def _decode(rank: Rank, workload: Workload) -> list[MemoryItem]:
    """One step of decoding: the largest of MLP, attention and logits at T = batch."""
    spec, T = rank.local, workload.batch
    each: list[tuple[Group, Figure]] = [
        ("mlp", mlp_transient(spec, workload, T)),
        ("attention", attention_transient(spec, workload, T)),
    ]
    if rank.stage == rank.parallel.pp - 1:
        each.append(("logits", logits_transient(spec, replace(workload, last_logits=True), T)))
    group, figure = max(each, key=lambda pair: pair[1].value)
    states = stream(spec, workload, T, 4)
    return [
        MemoryItem("one token: hidden states", "norm", ("decode",), states),
        MemoryItem(f"one token: {group}", group, ("decode",), figure),
    ]


def _llamacpp(rank: Rank, stored: Sequence[StoredTensor], workload: Workload) -> list[MemoryItem]:
    buffer = replace(llamacpp_compute_buffer(rank.local, workload), unit="B")
    return [
        *weight_items(rank, stored, LLAMACPP),
        MemoryItem("KV cache", "kv", ("compute",), kv_figure(rank, workload)),
        MemoryItem("compute buffer", "buffers", ("compute",), buffer),
    ]
