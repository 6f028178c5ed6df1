"""What one rank holds: tensor, pipeline and expert parallel splits, FSDP shards, and their rules.

Tensor parallel as Megatron-LM and vLLM do it: q, k, v, gate and up by output rows (column
parallel), o and down by input columns (row parallel), embedding and head by vocabulary; norms,
routers and latent projections on every rank. A split that shapes or blocks forbid is refused
with the numbers, the largest tensor-parallel degree that works and the nearest width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from typing import Literal

from gateup.account.workload import Engine, Parallel
from gateup.errors import UsageError
from gateup.model.quant.formats import FORMATS, StoredTensor
from gateup.model.spec import (
    MLP,
    AttentionSpec,
    LayerSpec,
    ModelSpec,
    MoESpec,
    TensorSpec,
)

# How a role's tensors are cut. "heads": output rows by query head; "kv": by KV head, replicated
# when there are fewer than ranks; "qkv": both in one tensor; "row": input columns, whose bias is
# whole on every rank; "whole": replicated. The MLP's roles split by width.
SPLITS: dict[str, str] = {
    "q_proj": "heads",
    "q_b_proj": "heads",
    "kv_b_proj": "heads",
    "sinks": "heads",
    "k_proj": "kv",
    "v_proj": "kv",
    "qkv_proj": "qkv",
    "o_proj": "attention_row",
    "q_a_proj": "whole",
    "kv_a_proj_with_mqa": "whole",
    "gate_proj": "column",
    "up_proj": "column",
    "gate_up_proj": "column",
    "down_proj": "row",
    "router": "whole",
    "shared_expert_gate": "whole",
    "linear_attn": "whole",
    "linear_mlp": "whole",
}


@dataclass(frozen=True)
class Rank:
    """One rank of pipeline stage `stage`, the fullest of its tensor and expert group.

    spec    the whole model
    local   the same with the layers of this stage and the heads, widths, experts and vocabulary
            that this rank holds; its rows are the model's
    """

    spec: ModelSpec
    local: ModelSpec
    parallel: Parallel
    stage: int
    vocab_multiple: int

    def holds(self, row: TensorSpec) -> bool:
        """Whether the row lies on this stage; a tied embedding lies on the first and the last."""
        first, last = self.stage == 0, self.stage == self.parallel.pp - 1
        if row.layer is not None:
            layers = self.local.layers
            return bool(layers) and layers[0].index <= row.layer <= layers[-1].index
        if row.part == "embedding" or row.role.startswith("embed_"):
            return first or (last and self.spec.tie_word_embeddings)
        return last

    def share(self, row: TensorSpec | None) -> Fraction:
        """Part of the row's parameters on this rank, before FSDP."""
        if row is None:
            return Fraction(1)
        if not self.holds(row):
            return Fraction(0)
        return _share(self, row)

    def nbytes(self, tensor: StoredTensor) -> int:
        """Bytes of the tensor on this rank, FSDP included (each tensor rounded up)."""
        if self.parallel.world == 1:
            return tensor.nbytes
        part = self.share(tensor.row) * tensor.nbytes
        return -(-part.numerator // (part.denominator * self.parallel.fsdp))

    def params(self, row: TensorSpec) -> int:
        """Parameters of the row on this rank, FSDP included (each row rounded up)."""
        part = self.share(row) * row.params
        return -(-part.numerator // (part.denominator * self.parallel.fsdp))


def padded_vocab(vocab: int, multiple: int, tp: int) -> int:
    """Vocabulary rows on the fullest rank, after padding to `multiple`."""
    padded = -(-vocab // multiple) * multiple
    return -(-padded // tp)


def kv_heads(attention: AttentionSpec, tp: int) -> int:
    """KV heads on one rank: at least one, so heads are replicated when ranks outnumber them."""
    return max(1, attention.num_kv_heads // tp)


def _share(rank: Rank, row: TensorSpec) -> Fraction:
    tp = rank.parallel.tp
    role, bias = row.role.removesuffix(".bias"), row.role.endswith(".bias")
    if row.part in ("embedding", "head") and row.shape[0] == rank.spec.vocab_size:
        local = padded_vocab(row.shape[0], rank.vocab_multiple, tp)
        return Fraction(local, row.shape[0])
    if row.part == "norm":
        return Fraction(1)
    kind = SPLITS.get(role.rpartition(".")[2], "whole")
    if row.experts:
        share = Fraction(-(-row.experts // rank.parallel.ep), row.experts)
        if bias and kind == "row":
            return share
        return share / rank.parallel.expert_tp if kind in ("column", "row") else share
    if kind == "whole" or (bias and kind in ("row", "attention_row")):
        return Fraction(1)
    if kind in ("kv", "qkv"):
        attention = rank.spec.layers[row.layer or 0].attention
        if attention is None or attention.mla:
            return Fraction(1, tp)
        kv, local = attention.num_kv_heads, kv_heads(attention, tp)
        if kind == "kv":
            return Fraction(local, kv)
        q = attention.num_heads
        return (Fraction(q, tp) + 2 * local) / (q + 2 * kv)
    return Fraction(1, tp)


def stage_layers(num_layers: int, pp: int) -> list[range]:
    """Contiguous layers of each stage; a remainder goes to the stages before the last one, which
    also holds the head [source: vLLM's default partition].
    """
    counts = [num_layers // pp] * pp
    for i in range(num_layers % pp):
        counts[-2 - i] += 1
    starts = [sum(counts[:i]) for i in range(pp)]
    return [range(s, s + c) for s, c in zip(starts, counts, strict=True)]


def ranks(
    spec: ModelSpec, stored: Sequence[StoredTensor], parallel: Parallel, engine: Engine
) -> Iterator[Rank]:
    """The fullest rank of each pipeline stage. Raises UsageError for a split that cannot be."""
    check_parallel(spec, stored, parallel)
    multiple = 64 if engine == "vllm" else 1  # vLLM pads the vocabulary to 64 [FACTS §4]
    vocab = padded_vocab(spec.vocab_size, multiple, parallel.tp)
    for stage, part in enumerate(stage_layers(spec.num_layers, parallel.pp)):
        layers = tuple(_local_layer(spec.layers[i], parallel) for i in part)
        yield Rank(spec, replace(spec, layers=layers, vocab_size=vocab), parallel, stage, multiple)


def _local_layer(layer: LayerSpec, parallel: Parallel) -> LayerSpec:
    attention = layer.attention
    if attention is not None:
        heads = attention.num_heads // parallel.tp
        attention = replace(
            attention, num_heads=heads, num_kv_heads=kv_heads(attention, parallel.tp)
        )
    return LayerSpec(layer.index, attention, _local_mlp(layer.mlp, parallel))


def _local_mlp(mlp: MLP | None, parallel: Parallel) -> MLP | None:
    if mlp is None:
        return None
    if not isinstance(mlp, MoESpec):
        return replace(mlp, intermediate_size=mlp.intermediate_size // parallel.tp)
    shared = mlp.shared
    if shared is not None:
        shared = replace(shared, intermediate_size=shared.intermediate_size // parallel.tp)
    width = mlp.expert.intermediate_size // parallel.expert_tp
    experts = -(-mlp.num_experts // parallel.ep)
    return replace(
        mlp,
        num_experts=experts,
        top_k=min(mlp.top_k, experts),
        expert=replace(mlp.expert, intermediate_size=width),
        shared=shared,
    )


def block_group(stored: Sequence[StoredTensor], kind: str = "row") -> int:
    """Input columns that a cut must keep together in tensors split as `kind` ("row": the down
    projections, "attention_row": o): the least common multiple of their blocks or groups.
    """
    group = 1
    for tensor in stored:
        if tensor.row is None or SPLITS.get(tensor.row.role.rpartition(".")[2]) != kind:
            continue
        group = lcm(group, block_of(tensor.type))
    return group


def block_of(type_name: str) -> int:
    """Elements of a row that lie in one block: 256 for q4_k, 128 for "awq:128", 1 for bf16."""
    name, _, group = type_name.partition(":")
    if group.isdigit():
        return int(group)
    return FORMATS[name].block_size if name in FORMATS else 1


@dataclass(frozen=True, slots=True)
class Misfit:
    """One number that forbids a split.

    kind    "heads", "o_proj" (its input columns a rank), "kv_heads" or "width"
    what    the number's name: "intermediate_size", "attention heads"
    value   the number, of the whole model ("o_proj": of a rank)
    degree  ranks it is shared out to
    group   columns that stay together; 1 without blocks
    text    the sentence that says it
    """

    kind: Literal["heads", "o_proj", "kv_heads", "width"]
    what: str
    value: int
    degree: int
    group: int
    text: str

    @property
    def nearest(self) -> int:
        """The next number that divides into ranks of whole groups."""
        unit = self.degree * self.group
        return -(-self.value // unit) * unit


def faults(spec: ModelSpec, stored: Sequence[StoredTensor], parallel: Parallel) -> list[str]:
    """Sentences on what forbids this split; empty when it can be."""
    return [m.text for m in misfits(spec, stored, parallel)]


def misfits(spec: ModelSpec, stored: Sequence[StoredTensor], parallel: Parallel) -> list[Misfit]:
    """What forbids this split, number by number; empty when it can be."""
    return _misfits(spec, _groups(stored), parallel)


def _groups(stored: Sequence[StoredTensor]) -> tuple[int, int]:
    """(of o, of the down projections)"""
    return block_group(stored, "attention_row"), block_group(stored)


def _misfits(spec: ModelSpec, groups: tuple[int, int], parallel: Parallel) -> list[Misfit]:
    if parallel.tp == parallel.ep == 1:
        return []
    return [
        *_head_misfits(spec, groups[0], parallel.tp),
        *_width_misfits(spec, groups[1], parallel),
    ]


def _head_misfits(spec: ModelSpec, group: int, tp: int) -> Iterator[Misfit]:
    kinds = {(x.num_heads, x.num_kv_heads, x.v_head_dim, x.mla is None) for x in _attention(spec)}
    for heads, kv, dim, cached in sorted(kinds):
        if heads % tp:
            text = f"{heads} attention heads do not divide by tp {tp}"
            yield Misfit("heads", "attention heads", heads, tp, 1, text)
        elif heads // tp * dim % group:
            columns = heads // tp * dim
            text = f"o_proj's {columns} input columns a rank are no whole blocks of {group}"
            yield Misfit("o_proj", "o_proj's input columns a rank", columns, 1, group, text)
        if cached and kv % tp and tp % kv:
            text = f"{kv} KV heads neither divide by tp {tp} nor divide it"
            yield Misfit("kv_heads", "KV heads", kv, tp, 1, text)


def _width_misfits(spec: ModelSpec, group: int, parallel: Parallel) -> Iterator[Misfit]:
    for width, degree, what in sorted(_widths(spec, parallel)):
        if degree > 1 and width % (degree * group):
            unit = degree * group
            nearest = -(-width // unit) * unit
            reason = f"{degree}" if group == 1 else f"{degree} ranks × blocks of {group}"
            text = (
                f"{what} {width} does not divide by {reason}; the nearest width is {nearest}"
                " (zero rows of gate and up, zero columns of down)"
            )
            yield Misfit("width", what, width, degree, group, text)


def _attention(spec: ModelSpec) -> Iterator[AttentionSpec]:
    return (x.attention for x in spec.layers if x.attention)


def _widths(spec: ModelSpec, parallel: Parallel) -> set[tuple[int, int, str]]:
    out: set[tuple[int, int, str]] = set()
    for layer in spec.layers:
        mlp = layer.mlp
        if isinstance(mlp, MoESpec):
            width = mlp.expert.intermediate_size
            out.add((width, parallel.expert_tp, "expert intermediate_size"))
            if mlp.shared:
                out.add((mlp.shared.intermediate_size, parallel.tp, "shared expert width"))
        elif mlp is not None:
            out.add((mlp.intermediate_size, parallel.tp, "intermediate_size"))
    return out


def largest_tp(spec: ModelSpec, stored: Sequence[StoredTensor], parallel: Parallel) -> int:
    """The largest legal tensor-parallel degree not above the one asked for."""
    groups = _groups(stored)
    most = max((x.num_heads for x in _attention(spec)), default=parallel.tp)
    for tp in range(min(parallel.tp, most), 1, -1):
        nests = tp % parallel.ep == 0 or parallel.ep % tp == 0
        if nests and not _misfits(spec, groups, replace(parallel, tp=tp)):
            return tp
    return 1


def check_parallel(spec: ModelSpec, stored: Sequence[StoredTensor], parallel: Parallel) -> None:
    """Raises UsageError when heads, widths, blocks, layers or experts cannot be shared out."""
    if parallel.pp > spec.num_layers:
        raise UsageError(
            f"--pp {parallel.pp} is more than the {spec.num_layers} layers of {spec.name}",
            expected=f"at most {spec.num_layers}",
        )
    experts = [x.mlp.num_experts for x in spec.layers if isinstance(x.mlp, MoESpec)]
    if parallel.ep > 1 and not experts:
        raise UsageError(f"--ep {parallel.ep}, but {spec.name} has no experts", expected="--ep 1")
    if experts and parallel.ep > max(experts):
        raise UsageError(
            f"--ep {parallel.ep} is more than the {max(experts)} experts of {spec.name}",
            expected=f"at most {max(experts)}",
        )
    found = faults(spec, stored, parallel)
    if found:
        raise UsageError(
            f"{spec.name} cannot be split over {parallel.tp} tensor-parallel ranks: "
            + "; ".join(found),
            expected="heads and widths to divide, in whole quantisation blocks",
            remedy=f"use --tp {largest_tp(spec, stored, parallel)}, the largest that divides",
        )
