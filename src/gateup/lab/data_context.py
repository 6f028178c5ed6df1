"""Attention against the MLP over context, in FLOPs and in memory: the Context page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gateup.account.activations import as_run, logits_transient, mlp_transient
from gateup.account.crossover import CrossoverPoint, crossover
from gateup.account.figure import Figure
from gateup.account.flops import (
    decode_flops,
    gemm_per_token,
    score_flops,
    visible_keys,
    visible_sum,
)
from gateup.account.flow import causal
from gateup.account.kv import kv_nbytes
from gateup.account.plan import compute_dtype
from gateup.account.workload import Workload
from gateup.model.spec import ModelSpec

POINTS = 72
MOST = 1 << 24
KV = ("bf16", "f16", "f32", "q8_0", "q4_0", "f8_e4m3")


@dataclass(frozen=True)
class FlopsOverContext:
    """FLOPs per token, without the projections, embedding and head, which both sides share.

    contexts  tokens, each half a power of two or finer
    mlp       the MLP's matrix products: the same at every context
    token     attention scores of the token at that context
    mean      attention scores of the average token of a prefill of that length
    crossing  where they meet, in both conventions
    causal    False for encoders, whose tokens all see the whole context: only T* is there then
    """

    contexts: tuple[int, ...]
    mlp: int
    token: tuple[int, ...]
    mean: tuple[float, ...]
    crossing: CrossoverPoint
    causal: bool = True

    def figures(self) -> Mapping[str, Figure]:
        """crossover.token, and crossover.prefill where tokens see what is before them only."""
        found = self.crossing.figures()
        return {f"crossover.{k}": v for k, v in found.items() if self.causal or k == "token"}


def contexts(spec: ModelSpec) -> tuple[int, ...]:
    """From 64 to past what the model was made for and past the crossings; evenly on a log axis."""
    point = crossover(spec).model
    reach = max(
        2 * (spec.max_position_embeddings or 4096),
        3 * int(point.prefill or 0),
        3 * int(point.token or 0),
    )
    top, low = float(min(reach, MOST)), 64.0
    steps = [low * (top / low) ** (i / (POINTS - 1)) for i in range(POINTS)]
    return tuple(dict.fromkeys(round(x) for x in steps))


def flops_over_context(spec: ModelSpec) -> FlopsOverContext:
    """Both sides at every context. An encoder's tokens see the whole context: mean equals token."""
    at = contexts(spec)
    kinds = Counter(x.attention for x in spec.layers if x.attention)
    token = tuple(
        sum(n * score_flops(a) * visible_keys(a, t) for a, n in kinds.items()) for t in at
    )
    one_way = causal(spec)
    mean = tuple(
        sum(n * score_flops(a) * visible_sum(a, t, causal=one_way) for a, n in kinds.items()) / t
        for t in at
    )
    return FlopsOverContext(
        at, gemm_per_token(spec)["mlp"], token, mean, crossover(spec).model, one_way
    )


def share_at(spec: ModelSpec, context: int) -> Mapping[str, Figure]:
    """FLOPs of the token at `context`: MLP, attention scores, all, and the MLP's share."""
    figures = decode_flops(spec, context, mla="expanded").figures()
    wanted = ("gemm.mlp", "attention_scores", "total", "mlp_share")
    return {f"flops.decode.{k}": figures[k] for k in wanted if k in figures}


@dataclass(frozen=True)
class MemoryOverContext:
    """Bytes by use: name -> one value a context."""

    contexts: tuple[int, ...]
    series: Mapping[str, tuple[int, ...]]


def work_of(spec: ModelSpec, ctx: int, batch: int, kv: str) -> Workload:
    """The run whose memory is drawn: one prefill in transformers, in the model's own dtype."""
    return Workload(ctx=ctx, batch=batch, kv_type=kv, compute_dtype=compute_dtype(spec))


def memory_at(spec: ModelSpec, work: Workload) -> Mapping[str, Figure]:
    """The KV cache, the MLP's activations in a prefill of the whole context (eager), and the
    logits of the last position or of every one.

    Raises UsageError for a cache format whose blocks do not divide a head.
    """
    run, tokens = as_run(spec, work), work.batch * work.ctx
    return {
        "kv": kv_nbytes(spec, work.ctx, work.kv_type, work.batch),
        "mlp": mlp_transient(run, work, tokens),
        "logits_last": logits_transient(run, replace(work, last_logits=True), tokens),
        "logits_all": logits_transient(run, replace(work, last_logits=False), tokens),
    }


def memory_over_context(spec: ModelSpec, batch: int, kv: str) -> MemoryOverContext:
    """`memory_at` at every context, values only."""
    at = contexts(spec)
    each: Sequence[Mapping[str, Figure]] = [
        memory_at(spec, work_of(spec, t, batch, kv)) for t in at
    ]
    return MemoryOverContext(
        at, {name: tuple(int(m[name].value) for m in each) for name in each[0]}
    )
