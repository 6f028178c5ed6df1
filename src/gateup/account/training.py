"""What a training step needs beside the weights: saved tensors, passing ones, gradients, optimizer.

Phases: "logits" is the loss, with every layer's saved tensors alive; "mlp" and "attention" are
backward through the last layer; "backward" is its end, when the gradients are complete;
"optimizer" the step. Between the ends of the backward pass memory moves in a straight line (a
layer's saved tensors go as its gradients come), so its ends bound it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple, TypeVar

from gateup.account.activations import (
    Term,
    attention_transient,
    dtype_bytes,
    stream,
    sum_of,
)
from gateup.account.figure import Figure
from gateup.account.lora import AdapterRow, adapter_rows
from gateup.account.memory_items import Group, MemoryItem
from gateup.account.parallel import SPLITS, Rank
from gateup.account.saved import (
    SOURCE,
    Precision,
    is_plain,
    merged_weights,
    saved_attention,
    saved_lora,
    saved_mlp,
    saved_norms,
)
from gateup.account.workload import Training, Workload
from gateup.errors import UsageError
from gateup.model.quant.formats import StoredTensor
from gateup.model.spec import LayerSpec, MoESpec, TensorSpec, active_width

Row = TypeVar("Row", TensorSpec, AdapterRow)

PHASES = ("load", "logits", "mlp", "attention", "backward", "optimizer")
RUNNING = PHASES[1:]
FORWARD = ("logits", "mlp", "attention")

# Widths I alive in the MLP's backward beside what was saved (weights trained, frozen): gradients
# of product, gate and up, less the product, which goes with down's weight gradient; modes that
# recompute add what they make.
BACKWARD = {"hf": (2, 3), "all": (2, 3), "gate_up": (3, 3), "input": (5, 5)}

# bitsandbytes 8-bit states: one fp32 absmax per 256 values and state; tensors of fewer than 4096
# values, and embeddings (transformers' Trainer asks for it), keep fp32 states.
BLOCK_8BIT, MIN_8BIT = 256, 4096

FP32_ROUTERS = frozenset({"deepseek_v2", "deepseek_v3"})

SAVED_LABELS: dict[Group, str] = {
    "mlp": "MLP, saved for backward",
    "attention": "attention, saved for backward",
    "norm": "norms, saved for backward",
    "adapter": "adapter inputs, saved for backward",
}


def training_items(
    rank: Rank, stored: Sequence[StoredTensor], workload: Workload
) -> list[MemoryItem]:
    """Every item of a training step beside the weights.

    Raises UsageError for engines that do not train, for full training of quantised weights and
    for LoRA targets that match nothing.
    """
    plan = workload.training
    assert plan is not None
    _check(stored, workload, plan)
    p = Precision(stored, workload, plan)
    adapters: list[AdapterRow] = []
    if not p.trained:
        adapters = [a for a in adapter_rows(rank.spec, plan.lora) if rank.holds(a.row)]
    items = _saved_items(rank, adapters, workload, plan, p)
    items += _passing_items(rank, workload, plan, p)
    items += _cast_items(rank, stored, plan, p)
    if p.trained:
        items += _state_items(
            _trained(rank, stored), plan, p.weights, rank.spec.tie_word_embeddings
        )
    else:
        items += _adapter_items(rank, adapters, plan, p)
    return items


def _check(stored: Sequence[StoredTensor], workload: Workload, plan: Training) -> None:
    if workload.engine not in ("transformers", "gateup"):
        raise UsageError(
            f"{workload.engine} does not train", expected="--engine transformers or gateup"
        )
    quantised = next((t for t in stored if t.row and not is_plain(t.type)), None)
    if plan.method == "full" and quantised is not None:
        raise UsageError(
            f"full training of {quantised.type} weights",
            expected="weights in a plain dtype (bf16, f16, f32)",
            remedy="train adapters on them: --train qlora",
        )


def layer_saved(
    rank: Rank,
    layer: LayerSpec,
    rows: Sequence[TensorSpec],
    adapters: Sequence[AdapterRow],
    workload: Workload,
    p: Precision,
) -> dict[Group, list[Term]]:
    """Bytes per token that one layer of the rank saves, as terms by group.

    rows, adapters  the layer's
    """
    plan = workload.training
    assert plan is not None
    return {
        "mlp": saved_mlp(
            layer,
            rank.spec.hidden_size,
            plan.save,
            p,
            fp32_router=rank.spec.family in FP32_ROUTERS,
        ),
        "attention": saved_attention(layer, rows, workload, p),
        "norm": [saved_norms(layer, rows, p)],
        "adapter": [saved_lora(adapters, rank, p)],
    }


def _saved_items(
    rank: Rank,
    adapters: Sequence[AdapterRow],
    workload: Workload,
    plan: Training,
    p: Precision,
) -> list[MemoryItem]:
    """Saved tensors of all layers, or with checkpointing the layers' inputs and one layer's."""
    T, H = workload.batch * workload.ctx, rank.spec.hidden_size
    rows = _by_layer(rank.spec.rows)
    own = _by_layer(adapters)
    each = [
        layer_saved(rank, x, rows.get(x.index, []), own.get(x.index, []), workload, p)
        for x in rank.local.layers
    ]
    tokens = Term(T, "T", str(T))
    if not each:
        return []
    sizes = [sum(t.value for terms in layer.values() for t in terms) for layer in each]
    last = sizes.index(max(sizes))
    ckpt = plan.checkpointing == "layer"
    items: list[MemoryItem] = []
    for group, label in SAVED_LABELS.items():
        one = sum_of(each[last][group], "estimate", SOURCE, tokens)
        # Backward has left the last layer's MLP behind when it comes to its attention.
        phases = ("mlp", "backward") if group == "mlp" else ("mlp", "attention", "backward")
        items.append(
            MemoryItem(f"one layer: {label}", group, phases if ckpt else ("logits", *phases), one)
        )
        if not ckpt:
            rest = _layers_sum([x[group] for i, x in enumerate(each) if i != last], tokens)
            items.append(MemoryItem(f"other layers: {label}", group, FORWARD, rest))
    merged = [merged_weights(own.get(x.index, []), rank, p) for x in rank.local.layers]
    items += _merged_items(merged, ckpt)
    if ckpt:
        n = len(each)
        kept = Term(n * H * p.stream, f"L·H·{p.stream}", f"{n}·{H}·{p.stream}")
        figure = sum_of([kept], "exact", "hidden states at each layer's entry", tokens)
        items.append(MemoryItem("layer inputs, checkpointed", "norm", FORWARD, figure))
    return items


def _by_layer(rows: Sequence[Row]) -> dict[int | None, list[Row]]:
    out: dict[int | None, list[Row]] = {}
    for row in rows:
        out.setdefault(row.layer, []).append(row)
    return out


def _layers_sum(layers: Sequence[list[Term]], tokens: Term) -> Figure:
    """The sum over layers; those of one kind are written once, with their number."""
    kinds: dict[tuple[Term, ...], int] = {}
    for layer in layers:
        kinds[tuple(layer)] = kinds.get(tuple(layer), 0) + 1
    terms = []
    for key, n in kinds.items():
        f = sum_of(list(key), "estimate", SOURCE)
        terms.append(Term(n * int(f.value), f"n·({f.formula})", f"{n}·({f.numbers})"))
    return sum_of(terms, "estimate", SOURCE, tokens)


def _merged_items(merged: Sequence[int], ckpt: bool) -> list[MemoryItem]:
    """PEFT adds an adapter on a stacked parameter to the weight: a second copy, kept for backward,
    and an fp32 update in passing.
    """
    top = max(merged, default=0)
    rest = sum(merged) - top
    source = "PEFT 0.21 target_parameters: weight + B·A, materialised"
    out = []
    for label, n, phases in (
        (
            "experts and router with adapters: one layer",
            top,
            (*FORWARD[1 if ckpt else 0 :], "backward"),
        ),
        ("experts and router with adapters: other layers", 0 if ckpt else rest, FORWARD),
        ("expert update in passing, fp32", 2 * top, ("mlp", "backward")),
    ):
        figure = Figure(n, "B", "estimate", "Σ E·in·out·bytes", str(n), source)
        out.append(MemoryItem(label, "adapter", phases, figure))
    return out


def _passing_items(
    rank: Rank, workload: Workload, plan: Training, p: Precision
) -> list[MemoryItem]:
    """What is alive for a moment: hidden states, gradients inside the last layer, the loss."""
    spec, T = rank.local, workload.batch * workload.ctx
    states = stream(spec, workload, T, 2)
    mlp = _mlp_backward(rank, workload, plan, p)
    items = [
        MemoryItem("hidden states and their gradients", "norm", RUNNING[:4], states),
        MemoryItem("MLP, gradients in passing", "mlp", ("mlp", "backward"), mlp),
        MemoryItem(
            "attention, gradients in passing",
            "attention",
            ("attention",),
            attention_transient(spec, workload, T),
        ),
    ]
    if rank.stage == rank.parallel.pp - 1:
        items.append(MemoryItem("logits and loss", "logits", ("logits",), _loss(rank, workload, p)))
        items.append(_head_input(rank, workload, p))
    return items


def _mlp_backward(rank: Rank, workload: Workload, plan: Training, p: Precision) -> Figure:
    n, T, b = BACKWARD[plan.save][0 if p.trained else 1], workload.batch * workload.ctx, p.compute
    tiled = workload.execution == "tiled" and workload.tile < T
    tile, letter = (workload.tile, "tile") if tiled else (T, "T")
    width = max((active_width(x.mlp) for x in rank.local.layers), default=0)
    k = max((x.mlp.top_k for x in rank.local.layers if isinstance(x.mlp, MoESpec)), default=0)
    H = rank.spec.hidden_size
    return sum_of(
        [
            Term(tile * n * width * b, f"{letter}·{n}·I·b", f"{tile}·{n}·{width}·{b}"),
            Term(T * k * H * b, "T·k·H·b", f"{T}·{k}·{H}·{b}"),
        ],
        "estimate",
        "operations of autograd's backward; whole steps of small models came out 4% under to 15% "
        "over torch's live storages (benchmarks/peak_memory.py)",
    )


def _loss(rank: Rank, workload: Workload, p: Precision) -> Figure:
    """Per logit: the model's output (b), log-softmax kept for backward (4), its gradient (4) and
    the gradient of the fp32 logits (4): 14 bytes in bf16. A loop that drops the output before
    backward needs b less.
    """
    T, V, b = workload.batch * workload.ctx, rank.local.vocab_size, p.compute
    each = b + 12
    return Figure(
        T * V * each,
        "B",
        "estimate",
        "T·V·(b + 4 + 4 + 4)",
        f"{T}·{V}·({b} + 4 + 4 + 4)",
        "transformers' causal loss and torch's cross_entropy, measured",
    )


def _head_input(rank: Rank, workload: Workload, p: Precision) -> MemoryItem:
    """The final norm's fp32 copy and 1/rms, and with training weights its own and the head's x."""
    T, H = workload.batch * workload.ctx, rank.spec.hidden_size
    per = 4 + (p.stream + p.compute if p.trained else 0)
    figure = sum_of(
        [Term(H * per, f"H·{per}", f"{H}·{per}"), Term(4, "4", "4")],
        "estimate",
        SOURCE,
        Term(T, "T", str(T)),
    )
    return MemoryItem("final norm, saved for backward", "norm", RUNNING[:1], figure)


def _cast_items(
    rank: Rank, stored: Sequence[StoredTensor], plan: Training, p: Precision
) -> list[MemoryItem]:
    """Autocast keeps a low-precision copy of every fp32 matrix: until the forward pass ends where
    layers are recomputed, else until its own backward.
    """
    if not p.cast:
        return []
    sizes: dict[int | None, int] = {}
    for t in stored:
        if t.row is not None and t.row.matmul and is_plain(t.type):
            n = int(rank.share(t.row) * t.row.params)
            sizes[t.row.layer] = sizes.get(t.row.layer, 0) + n
    total = sum(sizes.values())
    layer = max((n for key, n in sizes.items() if key is not None), default=0)
    whole = RUNNING[:1] if plan.checkpointing == "layer" else RUNNING[:3]
    one = tuple(x for x in RUNNING[:4] if x not in whole)
    return [
        MemoryItem(
            label,
            "weights",
            phases,
            Figure(
                n * p.compute,
                "B",
                "estimate",
                "matmul parameters·b",
                f"{n}·{p.compute}",
                "torch's autocast casts fp32 weights and keeps the copies for backward",
            ),
        )
        for label, n, phases in (
            ("autocast copies of the weights", total, whole),
            ("autocast copies of one layer's weights", layer, one),
        )
    ]


class Trained(NamedTuple):
    """`copies` tensors of `params` parameters each on this rank that get gradients."""

    params: int
    copies: int
    embedding: bool = False

    @property
    def total(self) -> int:
        return self.params * self.copies


def _trained(rank: Rank, stored: Sequence[StoredTensor]) -> list[Trained]:
    out: list[Trained] = []
    for t in stored:
        row = t.row
        if row is not None and not row.buffer and (n := rank.params(row)):
            out.append(Trained(-(-n // row.copies), row.copies, row.part == "embedding"))
    return out


def _adapter_items(
    rank: Rank, adapters: Sequence[AdapterRow], plan: Training, p: Precision
) -> list[MemoryItem]:
    tensors = [Trained(n, 1) for a in adapters if (n := adapter_params(a, rank))]
    n = sum(t.params for t in tensors)
    targets = ", ".join(plan.lora.targets)
    figure = Figure(
        n * p.adapter,
        "B",
        "exact",
        f"Σ r·(in + out)·{p.adapter}",
        f"{n}·{p.adapter}",
        f"PEFT: rank {plan.lora.rank} on {targets}, kept in {plan.lora.dtype}",
    )
    items = [MemoryItem("adapters", "adapter", PHASES, figure)]
    if p.lora < p.adapter:
        copies = Figure(
            n * p.lora,
            "B",
            "estimate",
            "params·b",
            f"{n}·{p.lora}",
            "torch's autocast keeps cast copies of A and B for backward",
        )
        items.append(MemoryItem("autocast copies of the adapters", "adapter", FORWARD, copies))
    return items + _state_items(tensors, plan, p.adapter)


def _state_items(
    tensors: Sequence[Trained], plan: Training, size: int, tied: bool = True
) -> list[MemoryItem]:
    """Gradients and optimizer state of parameters in a dtype of `size` bytes."""
    n = sum(t.total for t in tensors)
    grad = dtype_bytes(plan.grad_dtype, "gradient dtype") if plan.grad_dtype else size
    late = 0 if tied else sum(t.total for t in tensors if t.embedding)
    # Gradients exist before backward only where steps accumulate: else zero_grad frees them.
    # An untied embedding's comes last, when nothing saved is left.
    alive, end = (RUNNING, RUNNING) if plan.accumulation > 1 else (RUNNING[3:], RUNNING[4:])
    items = [
        MemoryItem(
            label,
            "gradients",
            phases,
            Figure(m * grad, "B", "exact", "params·bytes", f"{m}·{grad}", "one a parameter"),
        )
        for label, m, phases in (
            ("gradients", n - late, alive),
            ("gradients of the embedding", late, end),
        )
    ]
    state = _optimizer(tensors, n, plan)
    items.append(MemoryItem(f"optimizer: {plan.optimizer}", "optimizer", RUNNING, state))
    if plan.autocast and size < 4:
        master = Figure(n * 4, "B", "exact", "params·4", f"{n}·4", "mixed-precision optimizers")
        items.append(MemoryItem("fp32 master weights", "optimizer", RUNNING, master))
    return items


def _optimizer(tensors: Sequence[Trained], n: int, plan: Training) -> Figure:
    if plan.optimizer == "sgd":
        return Figure(0, "B", "exact", "0", "0", "torch's SGD without momentum keeps no state")
    if plan.optimizer == "adamw":
        return Figure(
            n * 8,
            "B",
            "bound",
            "params·2·4",
            f"{n}·2·4",
            "two fp32 moments; torch keeps them in the parameters' dtype, half where that is bf16",
        )
    small = [t for t in tensors if t.embedding or t.params < MIN_8BIT]
    wide = sum(t.total for t in small)
    blocks = sum(
        -(-t.params // BLOCK_8BIT) * t.copies
        for t in tensors
        if not (t.embedding or t.params < MIN_8BIT)
    )
    return Figure(
        2 * (n - wide) + 2 * 4 * blocks + 8 * wide,
        "B",
        "estimate",
        "2·params + 2·4·blocks of 256 + 8·(embeddings, small tensors)",
        f"2·{n - wide} + 2·4·{blocks} + 8·{wide}",
        "bitsandbytes block-wise 8-bit AdamW",
    )


def adapter_params(a: AdapterRow, rank: Rank) -> int:
    """Parameters of one adapter on the rank: the half on the split side is split with it."""
    share = rank.share(a.row)
    rows = SPLITS.get(a.role.rpartition(".")[2]) in ("row", "attention_row")
    if a.row.experts:
        inp, out = Fraction(a.inp) * share, Fraction(a.out) * share
    elif rows:
        inp, out = a.inp * share, Fraction(a.out)
    else:
        inp, out = Fraction(a.inp), a.out * share
    total = a.rank * a.copies * (inp + out) + a.extra
    return -(-total.numerator // (total.denominator * rank.parallel.fsdp))
