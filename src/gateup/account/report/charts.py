"""What the page plots: shares by part, widths by layer, FLOPs and KV over context, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import ceil

from gateup.account.flops import decode_flops, gemm_per_token, score_flops, visible_sum
from gateup.account.kv import kv_nbytes
from gateup.account.ledger import LEDGER_PARTS
from gateup.account.plan import Plan
from gateup.account.report import units
from gateup.account.report.svg import (
    Axes,
    Piece,
    Series,
    lines,
    stacked_bars,
    stacked_columns,
)
from gateup.model.spec import active_width

POINTS = 32  # enough for a bend at every window; a line between is straight
MANY_PHASES = 8


def charts(plan: Plan) -> list[str]:
    """The figures, in a grid."""
    each = [
        shares(plan),
        memory(plan),
        flops_over_context(plan),
        kv_over_context(plan),
        widths(plan),
    ]
    return ['<div class="charts">', *(c for c in each if c), "</div>"]


def figure(title: str, chart: str, keys: Mapping[str, str], caption: str = "") -> str:
    """A chart under its title, with its colours named."""
    legend = "".join(
        f'<span><i class="key b-{colour}"></i>{escape(name)}</span>'
        for name, colour in keys.items()
    )
    under = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure><h3>{escape(title)}</h3>{chart}<div class="keys">{legend}</div>{under}</figure>'
    )


def _name(part: str) -> str:
    return "MLP" if part == "mlp" else part


def shares(plan: Plan) -> str:
    """Parameters, bytes and FLOPs of a decoded token, each as one bar by part."""
    parts, total = plan.ledger.by_part(), plan.ledger.total
    rows: list[tuple[str, list[Piece]]] = []
    for label, key, write in (
        (f"parameters: {units.integer(total.params)}", "params", units.integer),
        (f"bytes ({plan.label}): {units.memory(total.nbytes)}", "nbytes", units.memory),
    ):
        rows.append(
            (
                units.printable(label),
                [
                    Piece(p, getattr(t, key), f"{_name(p)}: {write(getattr(t, key))}")
                    for p, t in parts.items()
                    if getattr(t, key)
                ],
            )
        )
    token = decode_flops(plan.spec, plan.workload.ctx)
    flops: dict[str, int] = {p: v for p, v in token.gemm.items() if v}
    flops["attention"] = flops.get("attention", 0) + token.attention
    rows.append(
        (
            f"FLOPs of a token at context {plan.workload.ctx:,}: {units.si(token.total)}",
            [
                Piece(p, flops[p], f"{_name(p)}: {units.si(flops[p], 'FLOP')}")
                for p in LEDGER_PARTS
                if flops.get(p)
            ],
        )
    )
    used = {p.colour for _, pieces in rows for p in pieces}
    keys = {_name(p): p for p in LEDGER_PARTS if p in used}
    return figure("By part", stacked_bars("shares by part", rows), keys)


def memory(plan: Plan) -> str:
    """A column for each phase of the run, by use."""
    plan_ = plan.memory
    columns = []
    groups: dict[str, None] = {}
    for phase in list(plan_.peaks)[:MANY_PHASES]:
        by_group = plan_.by_group(phase)
        groups.update(dict.fromkeys(by_group))
        columns.append(
            (phase, [Piece(g, n, f"{g}: {units.memory(n)}") for g, n in by_group.items()])
        )
    limit = None
    if plan.verdict is not None:
        limit = (float(plan.verdict.capacity), f"capacity {units.memory(plan.verdict.capacity)}")
    chart = stacked_columns("memory by phase", columns, units.short_memory, limit)
    caption = f"peak {units.tag(units.memory(plan_.peak), plan_.kind)} in {plan_.peak_phase}"
    return figure("Memory over the run", chart, {_name(g): g for g in groups}, caption)


def flops_over_context(plan: Plan) -> str:
    """Attention's scores against the MLP, per token; the crossings marked in both conventions."""
    spec, cross = plan.spec, plan.crossover.model
    mlp = gemm_per_token(spec)["mlp"]
    if not mlp or not any(x.attention for x in spec.layers):
        return ""
    limit = spec.max_position_embeddings or plan.workload.ctx
    reach = float(cross.prefill) * 1.3 if cross.prefill else 2.0 * limit
    contexts = _contexts(int(min(max(reach, 64), 1 << 40)))
    # The sums alone: decode_flops would write out every formula at every point.
    kinds = Counter(x.attention for x in spec.layers if x.attention)
    token = [
        (t, sum(n * score_flops(a) * a.visible(t) for a, n in kinds.items())) for t in contexts
    ]
    mean = [
        (t, sum(n * score_flops(a) * visible_sum(a, t) for a, n in kinds.items()) / t)
        for t in contexts
    ]
    series = [
        Series("MLP", "mlp", [(0, mlp), (contexts[-1], mlp)]),
        Series("attention, token at that context", "attention", [(0, 0), *token]),
        Series("attention, mean of a prefill", "attention", [(0, 0), *mean], dashed=True),
    ]
    marks = [
        (float(at), mlp, units.integer(ceil(at)))
        for at in (cross.token, cross.prefill)
        if at is not None
    ]
    axes = Axes("context, tokens", "FLOPs per token", units.integer, units.short_si)
    chart = lines("attention and MLP FLOPs over context", series, axes, marks)
    caption = "solid: a token at that context; dashed: the mean over a causal prefill. " + (
        cross.why or "Dots: where attention's scores cost what the MLP does (its GEMMs)."
    )
    return figure("Attention against MLP", chart, {"MLP": "mlp", "attention": "attention"}, caption)


def kv_over_context(plan: Plan) -> str:
    """The cache's growth against the weights, which stay."""
    spec, work = plan.spec, plan.workload
    if work.training is not None or not any(x.attention for x in spec.layers):
        return ""
    weights = plan.ledger.total.nbytes
    top = max(spec.max_position_embeddings or 0, 2 * work.ctx, 64)
    contexts = _contexts(min(top, 1 << 40))
    cache = [(t, kv_nbytes(spec, t, work.kv_type, work.batch).value) for t in contexts]
    series = [
        Series("weights", "weights", [(0, weights), (contexts[-1], weights)]),
        Series("KV cache", "kv", [(0, 0), *cache]),
    ]
    levels = []
    if plan.verdict is not None and work.parallel.world == 1:
        capacity = plan.verdict.capacity
        levels = [(float(capacity), f"capacity {units.memory(capacity)}")]
    here = kv_nbytes(spec, work.ctx, work.kv_type, work.batch).value
    marks = [(float(work.ctx), float(here), units.memory(here))]
    axes = Axes("context, tokens", "bytes", units.integer, units.short_memory, binary=True)
    chart = lines("KV cache and weights over context", series, axes, marks, levels)
    caption = f"KV cache in {work.kv_type}, batch {work.batch}; the dot is the context asked for"
    return figure("KV cache against weights", chart, {"weights": "weights", "KV": "kv"}, caption)


def _contexts(top: int) -> list[int]:
    return sorted({max(1, top * i // POINTS) for i in range(1, POINTS + 1)})


def widths(plan: Plan) -> str:
    """The width a token passes through in each layer, where layers differ."""
    spec = plan.spec
    each = [active_width(x.mlp) for x in spec.layers]
    if len(set(each)) < 2:
        return ""
    columns: Sequence[tuple[str, Iterable[Piece]]] = [
        (
            str(i) if i % max(1, len(each) // 8) == 0 else "",
            [Piece("mlp", width, f"layer {i}: {width:,}")],
        )
        for i, width in enumerate(each)
    ]
    chart = stacked_columns(
        "MLP width by layer", [(n, list(p)) for n, p in columns], units.integer, totals=False
    )
    return figure("MLP width by layer", chart, {"active width": "mlp"})
