"""Adapters by their numbers: whole pairs, rank, scale, vocabulary, dtypes, and whether they act."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateup.checks.adapter_layer_rules import replicated
from gateup.checks.adapter_parts import Pair, pairs_of, saved_modules
from gateup.checks.adapter_targeting import pattern_key, wanted_rank
from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding
from gateup.checks.lora_targets import shown
from gateup.checks.rule import rule
from gateup.files.adapter import Adapter
from gateup.files.adapter_zero import starts_at_zero
from gateup.files.header import TensorHeader, listed, many
from gateup.model.spec import ModelSpec

# Scales people train with: alpha/r from 0.25 (QLoRA: 16/64) to 4 (16/4, 32/8).
LOW_SCALE, HIGH_SCALE = 0.1, 8.0
# alpha/√r grows with the rank for one alpha: 16/√16 = 4, 64/√64 = 8, 128/√64 = 16.
HIGH_RSLORA = 12.0
MAX_SCALES = 3  # scales that are each reported; a pattern can give every module its own
FLOATS = frozenset({"f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2"})


def _adapter(context: Context) -> tuple[Adapter, tuple[Pair, ...]]:
    assert context.adapter is not None
    return context.adapter, pairs_of(context.spec, context.adapter, replicated(context))


@rule("adapter.pairs", "Every A has its B, at the rank the config says", needs=["adapter"])
def pairs(context: Context) -> Iterable[Finding]:
    """LoRA adds scale·B·A, A [r, in] and B [out, r]. A half alone adds nothing (PEFT fills the
    other with its first values: B with zeros), and loading builds the modules from
    adapter_config.json's r, so a file of another rank is a size mismatch.

    Example: r 8 in the config, A [16, 4096] in the file: the config of another run. Where
    rank_pattern names a module, its rank counts: {"q_proj": 32} asks for A [32, 4096] there.
    """
    adapter, found = _adapter(context)
    alone = [p for p in found if (p.a is None) != (p.b is None)]
    if alone:
        yield Finding(
            "adapter.pairs",
            "error",
            f"{many(len(alone), 'adapted module')} with only one of A and B",
            tuple(
                Evidence(p.module, "A alone" if p.b is None else "B alone", "A and B", "LoRA")
                for p in alone
            ),
            "Half of the pair is missing from the file: it was cut, filtered or merged wrongly.",
            "Save the adapter again; the present half has no effect.",
            {"alone": len(alone), "modules": len(found)},
        )
    wrong = [p for p in found if not p.experts and not _rank_fits(p, wanted_rank(adapter, p))]
    if wrong:
        ranks = sorted({r for p in wrong for r in _ranks(p)})
        keys = {pattern_key(adapter.rank_pattern, p.module) for p in wrong}
        yield Finding(
            "adapter.pairs",
            "error",
            f"{many(len(wrong), 'adapted module')} of another rank than adapter_config.json says",
            tuple(
                Evidence(
                    p.module,
                    f"A {_shape(p.a)}, B {_shape(p.b)}",
                    f"rank {wanted_rank(adapter, p)}",
                    f"{context.source('adapter')}, field {_rank_field(adapter, p)}",
                )
                for p in wrong
            ),
            "Modules are built from the config's rank, so the tensors do not fit into them: PEFT "
            "stops with a size mismatch.",
            _right_rank(ranks, keys),
            {"wrong": len(wrong), "rank": adapter.rank},
        )


def _rank_field(adapter: Adapter, p: Pair) -> str:
    key = pattern_key(adapter.rank_pattern, p.module)
    return "r" if key is None else f"rank_pattern, key {shown(key)}"


def _right_rank(ranks: Sequence[int], keys: set[str | None]) -> str:
    """What to write. keys: of rank_pattern that decided; None among them: r did."""
    if len(ranks) != 1:
        return "Take adapter_config.json and the weights from one run."
    named = sorted(shown(k) for k in keys if k is not None)
    if not named:
        return (
            f"Put r: {ranks[0]} into adapter_config.json if the tensors are the right ones, and "
            "alpha so that alpha/r is what was trained."
        )
    also = f", and r: {ranks[0]}" if None in keys else ""
    return (
        f"Put {ranks[0]} for {listed(named, 4)} into rank_pattern{also} if the tensors are the "
        "right ones, and alpha so that alpha/r is what was trained."
    )


def _ranks(p: Pair) -> tuple[int, ...]:
    """A's rows and B's columns."""
    out = []
    for tensor, axis in ((p.a, 0), (p.b, 1)):
        if tensor is not None and len(tensor.shape) == 2:
            out.append(tensor.shape[axis])
    return tuple(out)


def _rank_fits(p: Pair, wanted: int) -> bool:
    return set(_ranks(p)) <= {wanted}


def _shape(tensor: TensorHeader | None) -> str:
    return "missing" if tensor is None else str(list(tensor.shape))


@rule(
    "adapter.rank",
    "The rank is smaller than what it stands in for",
    needs=["adapter"],
    worst="warning",
)
def rank(context: Context) -> Iterable[Finding]:
    """r·(in + out) parameters replace in·out. From r = in·out/(in + out) on, the adapter is as
    large as the matrix, and at r = min(in, out) it can express any change at all: it is full
    training with an extra product.

    Example: rank 256 on k_proj [128, 896] of Qwen2.5-0.5B: 256·1024 = 262,144 parameters for a
    matrix of 114,688; break-even is rank 112.
    """
    _, found = _adapter(context)
    over = []
    for p in found:
        wanted, r = p.wanted(context.spec), p.rank
        if wanted and r and r * sum(wanted) >= wanted[0] * wanted[1]:
            over.append((p, wanted, r))
    if over:
        yield rank_finding(
            "adapter.rank", [(p.module, w, r) for p, w, r in over], len(found), "the adapter's A"
        )


def rank_finding(
    rule_id: str, over: Sequence[tuple[str, tuple[int, int], int]], total: int, source: str
) -> Finding:
    """over: (module, (in, out), rank) where the adapter has the matrix's size or more."""
    break_even = min(i * o // (i + o) for _, (i, o), _ in over)
    return Finding(
        rule_id,
        "warning" if 2 * len(over) > total else "note",
        f"{len(over)} of {many(total, 'adapter')} are as large as their matrix or larger",
        tuple(
            Evidence(
                name,
                f"rank {r}: {r * (i + o):,} parameters",
                f"fewer than the matrix's {i * o:,}: rank below {i * o / (i + o):.0f}",
                source,
            )
            for name, (i, o), r in over
        ),
        "r·(in + out) parameters stand in for in·out; from there on the adapter saves nothing.",
        f"Lower the rank to {_lower(break_even)} or less, leave these modules out, or train them "
        "whole (modules_to_save).",
        {"over": len(over), "break_even": break_even},
    )


def _lower(break_even: int) -> int:
    """The power of two below a quarter of break-even, where an adapter is worth its name."""
    return 1 << max(0, (max(break_even, 1) // 4 or 1).bit_length() - 1)


@rule("adapter.scale", "The scale alpha/r is in the range people train with", needs=["adapter"])
def scale(context: Context) -> Iterable[Finding]:
    """What an adapter adds is scale·B·A, scale = alpha/r, with rsLoRA alpha/√r. 0.25 to 4 is usual
    (alpha 16 and rank 64 to alpha 32 and rank 8). Alpha 0 switches the adapter off. Turning on
    rsLoRA without lowering alpha multiplies the scale by √r.

    Example: alpha 128, rank 64, use_rslora true: scale 128/8 = 16, where alpha/r gives 2. For
    the same scale rsLoRA wants alpha 16.
    """
    adapter, found = _adapter(context)
    file = context.source("adapter")
    for rank, alpha, key in _scales(adapter, found)[:MAX_SCALES]:
        place = (file, "lora_alpha" if key is None else f"alpha_pattern, key {shown(key)}")
        yield from scale_findings("adapter.scale", rank, alpha, adapter.use_rslora, place)


def _scales(adapter: Adapter, found: Sequence[Pair]) -> list[tuple[int, float, str | None]]:
    """The different (rank, alpha, key of alpha_pattern) that modules of the file are built with."""
    out: dict[tuple[int, float], str | None] = {}
    for p in found:
        key = pattern_key(adapter.alpha_pattern, p.module)
        alpha = adapter.alpha if key is None else adapter.alpha_pattern[key]
        out.setdefault((wanted_rank(adapter, p), alpha), key)
    return [(r, a, k) for (r, a), k in out.items()] or [(adapter.rank, adapter.alpha, None)]


def scale_findings(
    rule_id: str, r: int, alpha: float, rslora: bool, place: tuple[str, str]
) -> Iterable[Finding]:
    """Findings on one scale. place: (file, alpha's field)."""
    value = alpha / (math.sqrt(r) if rslora else r)
    high = HIGH_RSLORA if rslora else HIGH_SCALE
    formula = f"alpha/{'√' if rslora else ''}r = {alpha:g}/{'√' if rslora else ''}{r}"
    if LOW_SCALE <= value <= high:
        return
    if value == 0:
        title, cause = "alpha is 0: the adapter adds nothing", "scale·B·A with scale 0 is zero."
        remedy = f"Set alpha to {r} (scale 1) or {2 * r} (scale 2)."
    elif value < LOW_SCALE:
        title = f"the scale is {value:.3g}, far below what is usual"
        cause = f"{formula}; usual are 0.25 to 4. The adapter needs weights "
        cause += f"{1 / value:.0f} times as large for the same effect."
        remedy = f"alpha {r} gives scale 1; or raise the learning rate with that in mind."
    else:
        title = f"the scale is {value:.3g}, far above what is usual"
        cause = f"{formula}; usual are 0.25 to 4. Small changes of B have large effects and "
        cause += "training diverges easily."
        remedy = f"alpha {2 * r} gives scale 2."
        if rslora:
            same = 2 * math.sqrt(r)
            cause += f" rsLoRA divides by √r: without it, this alpha would give {alpha / r:.3g}."
            remedy = f"With rsLoRA alpha {same:.3g} gives scale 2."
    file, field = place
    yield Finding(
        rule_id,
        "error" if value == 0 else "warning",
        title,
        (
            Evidence(
                field, f"{alpha:g} at rank {r}", f"alpha/r of 0.25 to 4, not {value:.3g}", file
            ),
        ),
        cause,
        remedy,
        {"scale": value, "alpha": alpha, "rank": r},
    )


@rule("adapter.vocabulary", "Whole modules in the adapter fit the base", needs=["adapter"])
def vocabulary(context: Context) -> Iterable[Finding]:
    """modules_to_save stores whole matrices beside the adapter, mostly embed_tokens and lm_head.
    Their rows must be the base's vocab_size. That is often more than the tokenizer has entries:
    embeddings are padded to a round number, and shrinking them to len(tokenizer) is the fault,
    not the cure. Only growth (more tokens than rows) needs a resize.

    Example: Qwen2.5-7B has 152,064 rows, its tokenizer 151,665 entries, 399 rows are padding. An
    adapter that saved embed_tokens [151665, 3584] was trained on a base that some code had shrunk:

        load with PeftModel.from_pretrained on the untouched base (an Auto class may take
        len(tokenizer) as the truth and shrink), or resize the base to 151,665 rows first
        and live with a base of another size
    """
    adapter, _ = _adapter(context)
    spec = context.spec
    rows = {r.name: r for r in spec.rows}
    saved = saved_modules(spec, adapter)
    for name, (tensor, _) in saved.items():
        row = rows.get(name)
        wanted = _vocabulary_shape(spec, name) if row is None else row.shape
        if wanted is None or tensor.shape == wanted:
            continue
        if len(wanted) == 2 and tensor.shape[1:] == wanted[1:] and wanted[0] == spec.vocab_size:
            yield _vocabulary_finding(context, name, tensor.shape[0])
        else:
            yield Finding(
                "adapter.vocabulary",
                "error",
                f"{name} in the adapter is {list(tensor.shape)}, the base's {list(wanted)}",
                (
                    Evidence(
                        name, str(list(tensor.shape)), str(list(wanted)), context.source("config")
                    ),
                ),
                "The module was stored whole and belongs to a base of another shape.",
                "Use the adapter with its own base.",
                {},
            )
    yield from _unsaved(context, adapter, [module for _, module in saved.values()])


def _vocabulary_shape(spec: ModelSpec, name: str) -> tuple[int, ...] | None:
    """A tied head has no row of its own."""
    if name.endswith("lm_head.weight") and spec.tie_word_embeddings:
        return (spec.vocab_size, spec.hidden_size)
    return None


def _vocabulary_finding(context: Context, name: str, rows: int) -> Finding:
    spec, known = context.spec, context.adapter_tokenizer or context.tokenizer
    vocab, source = spec.vocab_size, context.source("config")
    evidence = [Evidence(name, f"{rows:,} rows", f"{vocab:,} rows", f"{source}, field vocab_size")]
    numbers: Mapping[str, int] = {"rows": rows, "vocab_size": vocab, "padding": vocab - rows}
    if known is not None:
        evidence.append(Evidence("tokenizer", f"{known.size:,} entries", "", known.source))
    if rows < vocab:
        exactly = known is not None and known.size == rows
        return Finding(
            "adapter.vocabulary",
            "error",
            f"{name} was shrunk to {rows:,} rows; the base has {vocab:,}",
            tuple(evidence),
            f"An embedding larger than the vocabulary is normal: {vocab - rows} of its rows are "
            "padding. "
            + (
                "The adapter's rows are exactly the tokenizer's entries: "
                if exactly
                else "Most likely "
            )
            + "a loader took len(tokenizer) for the truth and shrank the matrix.",
            "Never shrink. Load with PeftModel.from_pretrained on the untouched base, not with an "
            f"Auto class; or resize the base to {rows:,} first (resize_token_embeddings) and "
            "accept a base of another size. Only more tokens than rows need a resize.",
            numbers,
        )
    wanted = known is not None and vocab < known.highest + 1 <= rows  # tokens were added on purpose
    if not wanted and context.adapter_tokenizer is None:
        evidence.append(
            Evidence("the adapter's folder", "no tokenizer", "the one the new rows belong to")
        )
        lost = ", and the folder does not hold the tokenizer that knows which tokens they are"
    else:
        lost = ""
    return Finding(
        "adapter.vocabulary",
        "note" if wanted else "error",
        f"{name} has {rows:,} rows; the base has {vocab:,}",
        tuple(evidence),
        f"The vocabulary grew by {rows - vocab:,} rows while the adapter was trained"
        + (", as the tokenizer did." if wanted else f"{lost}."),
        f"Resize the base before loading: model.resize_token_embeddings({rows})"
        + (
            "; and save the tokenizer of that run into the adapter's folder: without it the "
            f"{rows - vocab:,} new rows are never used."
            if lost
            else ", with the tokenizer saved beside the adapter."
        ),
        numbers,
    )


def _unsaved(context: Context, adapter: Adapter, modules: Sequence[str]) -> Iterable[Finding]:
    absent = [
        m
        for m in adapter.modules_to_save
        if not any(have == m or have.endswith("." + m) for have in modules)
    ]
    if absent:
        yield Finding(
            "adapter.vocabulary",
            "error",
            f"modules_to_save names {listed(absent, 3)}, of which the file has nothing",
            tuple(
                Evidence(m, "no tensor", "its whole weight", f"{context.source('adapter')}")
                for m in absent
            ),
            "PEFT 0.21 stops with a KeyError, older ones keep the base's weight: what was trained "
            "there is lost, or the model has no module of that name.",
            "Save the adapter again with it, or take the name out of modules_to_save.",
            {"absent": len(absent)},
        )


@rule("adapter.dtype", "The adapter is stored in one floating-point dtype", needs=["adapter"])
def dtype(context: Context) -> Iterable[Finding]:
    """PEFT trains adapters in fp32 and saves them as they are; bf16 or fp16 files come from
    casting. Whole numbers (int8, packed 4-bit) in A or B are no adapter that a loader knows, and
    more than one dtype tells of two files mixed.

    Example: lora_A in bf16 and lora_B in fp32: 16 of 32 layers were merged in from another run.
    """
    _, found = _adapter(context)
    halves = [t for p in found for t in (p.a, p.b) if t is not None]
    odd = [t for t in halves if t.type not in FLOATS]
    if odd:
        yield Finding(
            "adapter.dtype",
            "error",
            f"{many(len(odd), 'adapter tensor')} of no floating-point dtype: {odd[0].type}",
            tuple(Evidence(t.name, t.type, "f32, bf16 or f16", "PEFT") for t in odd),
            "A and B are factors of a sum and are stored as numbers, never packed.",
            "Save the adapter again without quantising it.",
            {"odd": len(odd)},
        )
        return
    counts: dict[str, int] = {}
    for t in halves:
        counts[t.type] = counts.get(t.type, 0) + 1
    if len(counts) > 1:
        said = ", ".join(f"{n} {k}" for k, n in counts.items())
        rare = min(counts, key=lambda k: counts[k])
        yield Finding(
            "adapter.dtype",
            "warning",
            f"A and B in {len(counts)} dtypes: {said}",
            tuple(Evidence(t.name, t.type, "one dtype") for t in halves if t.type == rare),
            "One run saves one dtype: tensors of two runs, or a cast that missed some.",
            "Cast all of them alike, if they do belong together.",
            dict(counts),
        )


@rule("adapter.identity", "The adapter changes anything at all", needs=["adapter"])
def identity(context: Context) -> Iterable[Finding]:
    """LoRA starts with B = 0, so that training begins at the base model. An adapter whose B's are
    all zero after training is an exact identity: no gradient ever reached them. The usual cause is
    gradient checkpointing in its reentrant mode: it records a layer's gradient only if the layer's
    input asks for one, and with frozen embeddings none does. The loss hardly moves, no error is
    raised. Rank, alpha and learning rate are not at fault.

    Example: 224 of 224 lora_B are zero. Before training, one of

        model.enable_input_require_grads()
        gradient_checkpointing_kwargs={"use_reentrant": False}

    This rule reads the adapter's B's (nothing of the base): to their first value that is not zero.
    """
    adapter, found = _adapter(context)
    halves = [t for t in adapter.tensors if starts_at_zero(t)]
    zero = context.zero_halves or ()
    if not halves or not zero:
        return
    whole = len(zero) == len(halves)
    other = saved_modules(context.spec, adapter) or any(p.magnitude for p in found)
    subject = "the LoRA part of the adapter" if other else "adapter"
    yield Finding(
        "adapter.identity",
        "error" if whole else "warning",
        f"{subject} is an exact identity: {len(zero)} of {len(halves)} lora_B are zero"
        if whole
        else f"{len(zero)} of {len(halves)} lora_B are zero: these modules were not trained",
        tuple(Evidence(name, "zeros only", "values other than 0", "tensor data") for name in zero),
        _why_zero(context.trainer, whole),
        "Train again with model.enable_input_require_grads() before training, or with "
        'gradient_checkpointing_kwargs {"use_reentrant": false}. Rank, alpha and learning rate are '
        "not at fault.",
        {"zero": len(zero), "halves": len(halves)},
    )


def _why_zero(trainer: Mapping[str, Any] | None, whole: bool) -> str:
    start = "B starts at zero and no gradient reached it"
    if not whole:
        start += ": layers whose input asks for no gradient, or modules the data never used"
    kwargs = (trainer or {}).get("gradient_checkpointing_kwargs")
    if isinstance(kwargs, Mapping) and kwargs.get("use_reentrant") is True:
        return (
            f"{start}: the trainer's file has use_reentrant true, and with frozen embeddings no "
            "layer's input asks for one."
        )
    return (
        f"{start}. Most often: gradient checkpointing in reentrant mode with frozen embeddings, "
        "where no layer's input asks for one; else the adapter was saved before the first step."
    )
