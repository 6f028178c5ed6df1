"""Tensor parallel: heads, widths and vocabulary must fall into whole parts for every rank."""

from __future__ import annotations

from collections.abc import Iterable

from gateup.account.parallel import (
    Misfit,
    block_of,
    kv_heads,
    largest_tp,
    misfits,
    padded_vocab,
)
from gateup.account.workload import Parallel
from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding
from gateup.checks.padding import EXPERT, added_weights, config_key, padded, widths
from gateup.checks.rule import rule
from gateup.checks.target import Target, is_gguf, target
from gateup.checks.words import written
from gateup.model.quant.formats import StoredTensor
from gateup.model.spec import ModelSpec, MoESpec

# Degrees that people use; "tp 2, 4, 8 then fit" is said of these.
DEGREES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TILE = 128  # columns of a common GEMM tile on GPUs


def _legal(spec: ModelSpec, stored: tuple[StoredTensor, ...], up_to: int) -> list[int]:
    """Degrees that people use, up to `up_to`, at which nothing is in the way."""
    return [t for t in DEGREES if t <= up_to and not misfits(spec, stored, Parallel(tp=t))]


def _largest(context: Context, stored: tuple[StoredTensor, ...]) -> int:
    return largest_tp(context.spec, stored, Parallel(tp=context.tp or 1))


def _listed(degrees: Iterable[int]) -> str:
    return ", ".join(map(str, degrees))


def _blocks(number: int, group: int) -> str:
    """14784 of groups of 128: "115.5 × 128"."""
    return f"{written(number / group)} × {group}"


@rule("split.heads", "Attention heads and KV heads divide among the ranks", needs=("tp",))
def heads(context: Context) -> Iterable[Finding]:
    """Tensor parallel gives each rank whole attention heads: num_attention_heads must divide by
    tp. KV heads must divide too, or be so few that each is copied to several ranks: num_kv_heads
    divides by tp, or tp by num_kv_heads.

    Qwen2-0.5B has 14 heads and 2 KV heads:

        tp 2    7 heads and 1 KV head a rank            fits
        tp 4    14 / 4 = 3.5 heads a rank               does not

    Where KV heads are copied, the cache stops shrinking: 8 KV heads at tp 16 take as much cache a
    rank as at tp 8.

    With quantised weights o_proj is cut along its input, so a rank's heads × head_dim must be
    whole groups; with FP8 blocks each rank's rows of q, k and v must be too.
    """
    tp, aim = context.tp or 1, target(context)
    found = [m for m in misfits(context.spec, aim.stored, Parallel(tp=tp)) if m.kind != "width"]
    largest = _largest(context, aim.stored)
    for kind in dict.fromkeys(m.kind for m in found):
        first = next(m for m in found if m.kind == kind)  # layers may differ; one is enough
        yield _head_finding(context, first, aim, largest)
    if not found:
        yield from _fp8_rows(context, aim, largest)
        yield from _copied(context)


def _head_finding(context: Context, m: Misfit, aim: Target, largest: int) -> Finding:
    tp = context.tp or 1
    legal = _legal(context.spec, aim.stored, max(tp, 16))
    key = "num_key_value_heads" if m.kind == "kv_heads" else "num_attention_heads"
    if m.kind == "o_proj":
        found, expected = _blocks(m.value, m.group), f"a multiple of {m.group}"
        source, cause = aim.source, "o_proj is cut along its input, and a group cannot be cut."
    else:
        found = f"{m.value} / {tp} = {written(m.value / tp)} a rank"
        expected = f"a multiple of {tp}" + (
            f" or a divisor of {tp}" if m.kind == "kv_heads" else ""
        )
        source = f"{context.source('config')}, field {key}"
        cause = "Each rank computes whole heads: its rows of q, k, v and its columns of o."
    return Finding(
        "split.heads",
        "warning" if m.kind == "o_proj" and is_gguf(aim) else "error",
        f"tp {tp} cannot be: {m.text}",
        (Evidence(key, found, expected, source),),
        cause,
        f"use --tp {largest}, the largest below it that fits"
        + (f" (of the usual degrees: {_listed(legal)})" if legal else ""),
        {"tp": tp, "value": m.value, "group": m.group, "largest_tp": largest},
    )


def _fp8_rows(context: Context, aim: Target, largest: int) -> Iterable[Finding]:
    """q, k and v are scaled in blocks of their own; a rank needs whole blocks of each."""
    tp, block = context.tp or 1, block_of(aim.fmt)
    if not aim.fmt.startswith("fp8:") or tp == 1:
        return
    kinds = {x.attention for x in context.spec.layers if x.attention and not x.attention.mla}
    parts: dict[str, int] = {}
    for a in kinds:
        parts["q_proj"] = a.num_heads // tp * a.head_dim
        parts["k_proj, v_proj"] = kv_heads(a, tp) * a.head_dim
    wrong = {name: rows for name, rows in parts.items() if rows % block}
    if wrong:
        fits = [t for t in DEGREES if t < tp and _fp8_fits(context.spec, t, block)]
        yield Finding(
            "split.heads",
            "error",
            f"tp {tp}: a rank's rows of {' and '.join(wrong)} are no whole FP8 blocks of {block}",
            tuple(
                Evidence(name, _blocks(rows, block), f"a multiple of {block}", aim.source)
                for name, rows in wrong.items()
            ),
            "One scale stands for a block of rows and columns; a rank with part of one has no"
            " scale that fits it, and vLLM and SGLang refuse it.",
            f"use --tp {min(largest, max(fits, default=1))}",
            {"tp": tp, "block": block, **{n.split(",")[0]: r for n, r in wrong.items()}},
        )


def _fp8_fits(spec: ModelSpec, tp: int, block: int) -> bool:
    kinds = {x.attention for x in spec.layers if x.attention and not x.attention.mla}
    return all(
        a.num_heads % tp == 0
        and a.num_heads // tp * a.head_dim % block == 0
        and kv_heads(a, tp) * a.head_dim % block == 0
        for a in kinds
    )


def _copied(context: Context) -> Iterable[Finding]:
    tp = context.tp or 1
    kinds = {x.attention for x in context.spec.layers if x.attention and not x.attention.mla}
    fewest = min((a.num_kv_heads for a in kinds), default=tp)
    if fewest < tp:
        yield Finding(
            "split.heads",
            "note",
            f"{fewest} KV heads on {tp} ranks: each is held {tp // fewest} times",
            (
                Evidence(
                    "num_key_value_heads",
                    str(fewest),
                    f"{tp} or more for a cache that shrinks with every rank",
                    f"{context.source('config')}, field num_key_value_heads",
                ),
            ),
            f"A rank needs at least one KV head, so beyond tp {fewest} its KV cache and its k and v"
            " projections stay the same size.",
            "",
            {"tp": tp, "kv_heads": fewest, "copies": tp // fewest},
        )


@rule(
    "split.width", "MLP widths divide into whole quantisation groups for every rank", needs=("tp",)
)
def width(context: Context) -> Iterable[Finding]:
    """gate and up are cut by rows, down by columns: each rank holds I / tp channels. That must be
    a whole number, and where weights are quantised a whole number of groups, because a group's
    scale belongs to all of its columns (AWQ and GPTQ 32, 64 or 128; FP8 blocks 128; GGUF 32 or
    256).

    Qwen2.5-72B in AWQ with groups of 128, I = 29568:

        29568 = 231 × 128, and 231 = 3 × 7 × 11 is odd
        tp 2: 14784 = 115.5 × 128    no; nor can 4 or 8
        pad to 29696 = 232 × 128: tp 2, 4, 8 then fit; costs 3 · 8192 · 128 · 80 = 251,658,240
        weights and changes no output: silu(0) · 0 = 0

    Pad before quantising. Writing a smaller number into config.json instead drops trained
    channels without a word.

    What counts is the width of one projection. gate and up have scales of their own, so that the
    fused 2·I/tp is a multiple of the group is no help. Experts can stay whole on a rank instead:
    expert parallel.
    """
    aim = target(context)
    split = Parallel(tp=context.tp or 1)
    found = [m for m in misfits(context.spec, aim.stored, split) if m.kind == "width"]
    largest = _largest(context, aim.stored) if found else 1
    for what in dict.fromkeys(m.what for m in found):
        alike = [m for m in found if m.what == what]
        if len(alike) == 1:
            yield _width_finding(context, alike[0], aim, largest)
        else:
            yield _widths_finding(context, alike, aim, largest)


def _width_finding(context: Context, m: Misfit, aim: Target, largest: int) -> Finding:
    spec, tp = context.spec, context.tp or 1
    added = added_weights(spec, m.what, m.value, m.nearest)
    rank = written(m.value / tp)
    blocks = f" = {_blocks(m.value // tp, m.group)}" if m.value % tp == 0 and m.group > 1 else ""
    whole = f"a multiple of {tp * m.group}" + (
        f" ({tp} ranks × groups of {m.group})" if m.group > 1 else ""
    )
    key = config_key(spec, m.what)
    problem = "no whole number of groups of " + str(m.group) if m.group > 1 else "not whole"
    # llama.cpp cuts every matrix by rows; only engines that cut down by columns meet its blocks.
    only_blocks = m.value % tp == 0 and is_gguf(aim)
    return Finding(
        "split.width",
        "warning" if only_blocks else "error",
        f"tp {tp}: {m.what} {m.value} gives {rank} a rank, {problem}",
        (
            Evidence(key, f"{m.value} / {tp} = {rank}{blocks}", whole, aim.source),
            *_per_rank(m, aim),
        ),
        _width_cause(m, tp, aim),
        "; ".join(_width_remedies(context, m, aim, largest)),
        {
            "tp": tp,
            "width": m.value,
            "group": m.group,
            "padded": m.nearest,
            "added_weights": added,
            "largest_tp": largest,
        },
    )


def _widths_finding(context: Context, found: list[Misfit], aim: Target, largest: int) -> Finding:
    """One finding for a model whose layers have widths of their own."""
    spec, tp, first = context.spec, context.tp or 1, found[0]
    added = sum(added_weights(spec, m.what, m.value, m.nearest) for m in found)
    groups = f" groups of {first.group}" if first.group > 1 else ""
    return Finding(
        "split.width",
        "warning" if is_gguf(aim) and all(m.value % tp == 0 for m in found) else "error",
        f"tp {tp}: {len(found)} of the layers' widths give a rank no whole{groups or ' width'}",
        tuple(
            Evidence(
                f"{m.what} {m.value}",
                f"{written(m.value / tp)} a rank",
                f"a multiple of {tp * m.group}; the nearest is {m.nearest}",
                aim.source,
            )
            for m in found
        ),
        "Layers have widths of their own, and each must divide among the ranks.",
        f"pad each to its nearest multiple of {tp * first.group}: costs {added:,} weights and"
        f" changes no output; as it is, --tp {largest} is the largest that fits",
        {"tp": tp, "group": first.group, "added_weights": added, "largest_tp": largest},
    )


def _per_rank(m: Misfit, aim: Target) -> Iterable[Evidence]:
    """The widths a rank would hold at the usual degrees up to the one asked for."""
    degrees = [1, *(t for t in DEGREES if t <= m.degree)]
    fits = [t for t in degrees if m.value % (t * m.group) == 0]
    sizes = " / ".join(written(m.value / t) for t in degrees)
    found = f"{sizes} at tp {' / '.join(map(str, degrees))}"
    yield Evidence(
        f"{m.what} a rank",
        found,
        f"whole at tp {_listed(fits)}" if fits else "whole at no tp, not even 1",
        aim.source,
    )


def _width_cause(m: Misfit, tp: int, aim: Target) -> str:
    lines = ["gate and up are cut by rows and down by columns, I / tp channels a rank."]
    if m.group > 1:
        lines.append(f"{aim.fmt} scales {m.group} columns together, and a group cannot be cut.")
    if m.value % m.group == 0:
        units = m.value // m.group
        form = f"{m.value} = {units} × {m.group}, and {units}" if m.group > 1 else str(m.value)
        factors = _factors(units)
        equal = f" = {factors}" if factors != str(units) else ""
        lines.append(f"{form}{equal} does not divide by {tp}.")
    else:
        lines.append(f"{m.value} mod {m.group} = {m.value % m.group}: not whole even on one rank.")
    if m.group > 1 and 2 * m.value % (tp * m.group) == 0:
        lines.append(
            f"That gate and up together, {2 * m.value // tp}, are a multiple of {m.group} is no"
            " help: each has scales of its own."
        )
    if is_gguf(aim):
        lines.append("llama.cpp's own row split cuts every matrix by rows and is not concerned.")
    return " ".join(lines)


def _factors(n: int) -> str:
    """Prime factors: 231 -> "3 × 7 × 11", 14336 -> "2^11 × 7"."""
    powers: dict[int, int] = {}
    p = 2
    while p * p <= n:
        while n % p == 0:
            powers[p] = powers.get(p, 0) + 1
            n //= p
        p += 1
    if n > 1:
        powers[n] = powers.get(n, 0) + 1
    return " × ".join(str(p) if k == 1 else f"{p}^{k}" for p, k in powers.items())


def _width_remedies(context: Context, m: Misfit, aim: Target, largest: int) -> Iterable[str]:
    spec, tp = context.spec, context.tp or 1
    if m.what == EXPERT and _experts_whole(spec, aim, tp):
        yield (
            f"expert parallel keeps every expert whole on one rank: --tp {tp} --ep {tp}"
            " (vLLM: --enable-expert-parallel)"
        )
    heads = [x for x in misfits(spec, aim.stored, Parallel(tp=tp)) if x.kind != "width"]
    if heads:
        yield from _ruled_out(context, m, aim, largest, heads[0])
        return
    wider = padded(spec, m.what, m.value, m.nearest)
    degrees = sorted({*DEGREES, tp})
    fits = [t for t in degrees if t <= max(8, tp) and not _width_misfits(wider, m, aim, t)]
    if max(fits, default=1) <= largest:
        yield "other widths are in the way too: padding this one is no help"
        yield f"use --tp {largest}, the largest below it that fits"
        return
    before = " before quantising" if m.group > 1 else ""
    added = added_weights(spec, m.what, m.value, m.nearest)
    yield (
        f"pad to {m.nearest}{before}: tp {_listed(fits)} then fit; costs {added:,} weights and"
        f" changes no output{_smaller_pads(m, tp)}"
    )
    yield from _smaller_group(m, aim, tp)
    yield f"as it is, --tp {largest} is the largest that fits"
    if m.group > 1:
        lower = m.value // (tp * m.group) * tp * m.group
        if lower:
            yield (
                f"do not lower {config_key(spec, m.what)} to {lower}: it drops"
                f" {m.value - lower} trained channels of every such MLP without a word"
            )


def _ruled_out(
    context: Context, m: Misfit, aim: Target, largest: int, heads: Misfit
) -> Iterable[str]:
    """No width helps where the heads forbid the degree: what the next smaller ones would take."""
    spec, tp = context.spec, context.tp or 1
    yield f"tp {tp} is ruled out in the first place, whatever the width: {heads.text}"
    for t in sorted((t for t in DEGREES if largest < t < tp), reverse=True):
        unit = t * m.group
        width = -(-m.value // unit) * unit
        found = misfits(padded(spec, m.what, m.value, width), aim.stored, Parallel(tp=t))
        if not [x for x in found if x.kind != "width" or (x.what, x.value) == (m.what, width)]:
            yield (
                f"for tp {t} pad to {width}{' before quantising' if m.group > 1 else ''}: costs"
                f" {added_weights(spec, m.what, m.value, width):,} weights and changes no output"
            )
            break
    yield f"use --tp {largest}, the largest below it that fits as it is"


def _width_misfits(spec: ModelSpec, m: Misfit, aim: Target, tp: int) -> list[Misfit]:
    """What is in the way of the padded width, and of the heads, at another degree."""
    found = misfits(spec, aim.stored, Parallel(tp=tp))
    return [x for x in found if x.kind != "width" or (x.what, x.value) == (m.what, m.nearest)]


def _smaller_pads(m: Misfit, tp: int) -> str:
    """Widths that suffice for a smaller degree, where they are smaller."""
    parts = []
    for t in DEGREES:
        unit = t * m.group
        width = -(-m.value // unit) * unit
        if t < tp and m.value % unit and width < m.nearest:
            parts.append(f"{width} is enough for tp {t}")
    return f" ({'; '.join(parts)})" if parts else ""


def _smaller_group(m: Misfit, aim: Target, tp: int) -> Iterable[str]:
    name, _, group = aim.fmt.partition(":")
    if name in ("awq", "gptq") and group.isdigit():
        for g in (64, 32):
            if g < int(group) and m.value % (tp * g) == 0:
                yield f"or quantise as {name}:{g}: {m.value // tp} = {_blocks(m.value // tp, g)}"
                return


def _experts_whole(spec: ModelSpec, aim: Target, tp: int) -> bool:
    """Whether tp ranks with ep = tp leave the experts' width uncut."""
    experts = [x.mlp.num_experts for x in spec.layers if isinstance(x.mlp, MoESpec)]
    found = misfits(spec, aim.stored, Parallel(tp=tp, ep=tp))
    return tp <= min(experts, default=0) and not any(m.what == EXPERT for m in found)


@rule(
    "split.align",
    "A rank's MLP width fills the tiles of a matrix multiplication",
    needs=("tp",),
    worst="note",
)
def align(context: Context) -> Iterable[Finding]:
    """GPUs multiply in tiles, often 128 columns wide. A width that is no multiple of the tile is
    computed as if it were: the last tile is partly idle. Correct, and a little slower.

        I = 1408 at tp 2: 704 = 5.5 × 128: six tiles for 5.5 tiles' work, 8.3% idle

    The note says which of 8, 64, 128 and 256 divide a rank's width. Widths that are not even a
    multiple of 8 also lose the aligned loads that tensor cores want.
    """
    spec, split = context.spec, Parallel(tp=context.tp or 1)
    wrong = {(m.what, m.value) for m in misfits(spec, target(context).stored, split)}
    uneven = [
        (what, value, value // split.tp)
        for what, value in widths(spec)
        if value % split.tp == 0 and value // split.tp % TILE and (what, value) not in wrong
    ]
    if not uneven:
        return
    worst = max(uneven, key=lambda w: _idle(w[2]))
    more = f", and of {len(uneven) - 1} other widths less" if len(uneven) > 1 else ""
    yield Finding(
        "split.align",
        "note",
        f"tp {split.tp}: {worst[0]} of {worst[2]} a rank leaves {_idle(worst[2]):.1%} of its"
        f" {TILE}-wide tiles idle{more}",
        tuple(
            Evidence(
                config_key(spec, what),
                f"{rank} = {_blocks(rank, TILE)} a rank; divides by {_divisors(rank)}",
                f"a multiple of {TILE}: {-(-rank // TILE) * TILE * split.tp} in all",
                "GEMM tiles of GPUs",
            )
            for what, _, rank in uneven
        ),
        "Nothing is wrong: the last tile is computed whole and partly thrown away.",
        "",
        {"tp": split.tp, "rank_width": worst[2], "tile": TILE, "idle": _idle(worst[2])},
    )


def _idle(rank: int) -> float:
    """Share of the tiles' columns that hold nothing."""
    return 1 - rank / (-(-rank // TILE) * TILE)


def _divisors(rank: int) -> str:
    """Those of 8, 64, 128, 256 that divide the width."""
    return ", ".join(str(n) for n in (8, 64, 128, 256) if rank % n == 0) or "none of 8, 64, 128"


@rule(
    "split.vocab",
    "The vocabulary divides among the ranks, padding counted",
    needs=("tp",),
    worst="warning",
)
def vocab(context: Context) -> Iterable[Finding]:
    """Embedding and head are cut by vocabulary rows. Engines pad them first: vLLM to a multiple of
    64, Megatron-LM to one of 128 · tp. The extra rows are never chosen, and cost memory.

        V = 49155 at tp 2: vLLM 49,216 rows, Megatron 49,408
        V = 32000 at tp 3: vLLM's 32,000 rows do not divide by 3: it refuses

    A checkpoint trained in Megatron carries its padding along: its vocab_size is then the padded
    one, and the tokenizer's is smaller. That is normal.
    """
    tp, spec = context.tp or 1, context.spec
    rows = spec.vocab_size
    vllm = -(-rows // 64) * 64
    megatron = padded_vocab(rows, 128 * tp, tp) * tp
    width = spec.hidden_size * (1 if spec.tie_word_embeddings else 2)
    numbers = {"tp": tp, "vocab_size": rows, "vllm": vllm, "megatron": megatron}
    source = f"{context.source('config')}, field vocab_size"
    if tp > 1 and vllm % tp:
        yield Finding(
            "split.vocab",
            "warning",
            f"tp {tp}: vLLM pads the vocabulary to {vllm:,} rows, which do not divide by {tp}",
            (Evidence("vocab_size", f"{rows:,}", f"a multiple of {tp} once padded", source),),
            "vLLM pads to a multiple of 64 whatever tp is, and refuses a remainder.",
            "use a tp that divides 64",
            numbers,
        )
    elif tp > 1 and megatron > rows:
        yield Finding(
            "split.vocab",
            "note",
            f"tp {tp}: the vocabulary of {rows:,} is padded: vLLM {vllm:,}, Megatron {megatron:,}",
            (Evidence("vocab_size", f"{rows:,}", f"a multiple of {128 * tp}", source),),
            f"Rows beyond the vocabulary are never chosen; Megatron's take"
            f" {(megatron - rows) * width:,} weights.",
            "",
            numbers,
        )
