"""Two checkpoints that should be one model: every size and setting of theirs side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gateup.checks import known
from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding, Severity
from gateup.checks.gguf_rope_rules import against, full_scaling, scaling_of
from gateup.checks.rope_rules import Rope, ropes
from gateup.checks.rule import rule
from gateup.checks.words import typed, written
from gateup.model.families.base import ACTIVATIONS
from gateup.model.spec import ModelSpec, MoESpec

# Settings of both descriptions that no size shows, and how bad it is that they differ.
COMPARED: Mapping[str, Severity] = {
    "rms_norm_eps": "warning",
    "layer_norm_eps": "warning",
    "rope_theta": "warning",
    "partial_rotary_factor": "warning",
    "hidden_act": "warning",
    "hidden_activation": "warning",
    "max_position_embeddings": "warning",
    "sliding_window": "warning",
    "tie_word_embeddings": "warning",
    "final_logit_softcapping": "warning",
    "attn_logit_softcapping": "warning",
    "routed_scaling_factor": "warning",
    "norm_topk_prob": "warning",
}
# Spellings of one thing under rope_scaling.
_KIND = ("rope_type", "type")


@rule("semantics.same", "Two descriptions of one model say the same", needs=("base",))
def same(context: Context) -> Iterable[Finding]:
    """--base names the model that MODEL was made from: the original of a GGUF, the base of a
    fine-tune. Both have the same sizes then. Another family, depth or width is another model, and
    nothing else is compared.

    A GGUF carries its own copy of what config.json says, as metadata, and engines read only that. A
    converter with a constant in place of a field leaves a file that loads and computes something
    else: eps 1e-6 for Llama 2, rope base 10,000 for Llama 3, no rope scaling, a context of 2,048.

        gateup check model.gguf --base ORIGINAL
        llama.attention.layer_norm_rms_epsilon 1e-06, rms_norm_eps 1e-05

    Compared are sizes, rotary base and scaling, eps, activation, positions, windows, soft caps,
    vocabulary and dtype. Numbers in metadata are float32: 1e-05 comes back as 9.99999975e-06 and
    counts as equal.
    """
    if context.base is None:
        return
    spec, base = context.spec, context.base.spec
    gguf = "gguf" in (context.checkpoint.kind, context.base.kind)
    shape, other = dict(_shape(spec, gguf)), dict(_shape(base, gguf))
    apart = {k: (shape.get(k, "absent"), other.get(k, "absent")) for k in {**shape, **other}}
    apart = {k: (a, b) for k, (a, b) in apart.items() if a != b}
    if apart.keys() & {"model_type", "hidden_size", "num_hidden_layers"}:
        yield _another(context, base, apart)
        return
    for key, (found, expected) in apart.items():
        yield _differs(context, "warning", key, found, expected)
    yield from _vocabulary(context, base)
    for key, severity in COMPARED.items():
        found, expected = _of(spec.config, key), _of(base.config, key)
        if found is None or expected is None or _equal(found, expected):
            continue
        yield _differs(context, severity, key, _said(found), _said(expected))
    yield from _scaling(context)
    if spec.dtype and base.dtype and spec.dtype != base.dtype:
        yield _differs(context, "note", "dtype", spec.dtype, base.dtype)


def _shape(spec: ModelSpec, gguf: bool) -> Iterator[tuple[str, str]]:
    """(field, its value) of everything that makes two checkpoints one architecture.

    gguf  one of the two is a GGUF, which calls several families "llama"
    """
    if not gguf:
        yield "model_type", spec.family
    yield "hidden_size", str(spec.hidden_size)
    yield "num_hidden_layers", str(spec.num_layers)
    kinds = [x.attention for x in spec.layers if x.attention]
    if kinds:
        yield "num_attention_heads", _each(a.num_heads for a in kinds)
        yield "num_key_value_heads", _each(a.num_kv_heads for a in kinds)
        yield "head_dim", _each(a.head_dim for a in kinds)
    moes = [x.mlp for x in spec.layers if isinstance(x.mlp, MoESpec)]
    dense = [x.mlp for x in spec.layers if x.mlp and not isinstance(x.mlp, MoESpec)]
    if dense:
        yield "intermediate_size", _each(m.intermediate_size for m in dense)
    if moes:
        yield "experts", _each(m.num_experts for m in moes)
        yield "experts per token", _each(m.top_k for m in moes)
        yield "expert intermediate_size", _each(m.expert.intermediate_size for m in moes)


def _each(values: Iterable[int]) -> str:
    """One number where all layers have it; the different ones otherwise."""
    found = list(values)
    kinds = sorted(set(found))
    if len(kinds) == 1:
        return str(kinds[0])
    return ", ".join(f"{k} in {found.count(k)} layers" for k in kinds[:4])


def _another(context: Context, base: ModelSpec, apart: Mapping[str, tuple[str, str]]) -> Finding:
    if context.spec.vocab_size != base.vocab_size:
        apart = {**apart, "vocab_size": (str(context.spec.vocab_size), str(base.vocab_size))}
    fields = ", ".join(apart)
    return Finding(
        "semantics.same",
        "error",
        f"{context.spec.name} and {base.name} are two models: {fields} differ",
        tuple(
            Evidence(key, found, expected, f"{base.name}, --base")
            for key, (found, expected) in apart.items()
        ),
        "--base takes the model that this one was made from, with the same family, depth and width."
        " Neither weights nor adapters of the one fit the other.",
        "name the model it was made from",
        {"fields": len(apart)},
    )


def _differs(context: Context, severity: Severity, key: str, found: str, expected: str) -> Finding:
    assert context.base is not None
    base = context.base.spec
    return Finding(
        "semantics.same",
        severity,
        f"{key} is {found[:40]}; {base.name} has {expected[:40]}",
        (Evidence(key, found[:60], expected[:60], f"{base.name}, field {key}"),),
        "Saved or loaded in another dtype; no value changes that both can hold."
        if severity == "note" and key == "dtype"
        else "Both describe the same sizes, so one of the two was lost or made up on the way.",
        "" if severity == "note" else "convert again from the original, or correct the field",
        {"found": found[:60], "expected": expected[:60]},
    )


def _vocabulary(context: Context, base: ModelSpec) -> Iterator[Finding]:
    more = context.spec.vocab_size - base.vocab_size
    if not more:
        return
    grown = 0 < more <= known.ADDED_TOKENS
    yield Finding(
        "semantics.same",
        "note" if grown else "warning",
        f"vocab_size is {context.spec.vocab_size:,}; {base.name} has {base.vocab_size:,}",
        (
            Evidence(
                "vocab_size",
                f"{context.spec.vocab_size:,}",
                f"{base.vocab_size:,}",
                f"{base.name}, field vocab_size",
            ),
        ),
        "A fine-tune added tokens, or padded the matrix."
        if grown
        else "Ids mean other tokens where another tokenizer was used; a smaller matrix has lost"
        " some.",
        "" if grown else "take tokenizer and embedding from one model",
        {"found": context.spec.vocab_size, "expected": base.vocab_size},
    )


def _said(value: Any) -> str:
    number = known.number(value)
    return typed(value) if number is None else written(number)


def _of(config: Mapping[str, Any], key: str) -> Any:
    value = config.get(key)
    if value is None and key in ("rope_theta", "partial_rotary_factor"):
        parameters = config.get("rope_parameters")
        value = parameters.get(key) if isinstance(parameters, Mapping) else None
    return value


def _equal(a: Any, b: Any) -> bool:
    x, y = known.number(a), known.number(b)
    if x is not None and y is not None:
        return known.same(x, y)
    if isinstance(a, str) and isinstance(b, str):
        return ACTIVATIONS.get(a, a) == ACTIVATIONS.get(b, b)
    return bool(a == b)


# ---- rotary scaling ------------------------------------------------------------------------------


def _scaling(context: Context) -> Iterator[Finding]:
    """rope_scaling on both sides; a GGUF's is in its metadata and tables."""
    assert context.base is not None
    checkpoint, base = context.checkpoint, context.base
    if base.kind == "gguf":
        return  # what a GGUF lacks says nothing about the original
    wanted = full_scaling(base.spec.config)
    if checkpoint.kind == "gguf":
        if wanted is not None:
            scaling = scaling_of(checkpoint.metadata)
            names = {h.name for h in checkpoint.headers}
            for found in against(context, scaling, names, base.spec.name, wanted):
                yield Finding(
                    "semantics.same",
                    found.severity,
                    found.title,
                    tuple(
                        Evidence(e.subject, e.found, e.expected, f"{base.spec.name}, --base")
                        for e in found.evidence
                    ),
                    found.cause,
                    found.remedy,
                )
        return
    ours, theirs = _by_layers(checkpoint.spec.config), _by_layers(base.spec.config)
    for kind in sorted({*ours, *theirs}):
        a, b = ours.get(kind, {}), theirs.get(kind, {})
        apart = [k for k in {**a, **b} if not _alike(a.get(k), b.get(k))]
        if apart:
            yield Finding(
                "semantics.same",
                "warning",
                f"rope_scaling differs from that of {base.spec.name}: {', '.join(apart)}",
                tuple(
                    Evidence(
                        f"rope_scaling{f'.{kind}' if kind else ''}.{k}",
                        _short(a.get(k)),
                        _short(b.get(k)),
                        f"{base.spec.name}, --base",
                    )
                    for k in apart
                ),
                "Positions are turned otherwise than the weights were trained with: long texts fall"
                " apart, with yarn and longrope short ones suffer too.",
                "take the rope_scaling of the original config.json, unless the context was extended"
                " by training",
                {"fields": len(apart)},
            )


def _by_layers(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Kind of layer ("" where there is one) -> its scaling, spelled in one way."""
    return {_place(r): _plain(r, config) for r in ropes(config)}


def _place(rope: Rope) -> str:
    return rope.where.partition(".")[2]


def _plain(rope: Rope, config: Mapping[str, Any]) -> dict[str, Any]:
    skipped = (*_KIND, "rope_theta", "partial_rotary_factor", "finetuned")
    out = {k: v for k, v in rope.values.items() if k not in skipped and v is not None}
    kind = "longrope" if rope.kind == "su" else rope.kind
    if kind in ("", "default"):
        return {}
    top = config.get("original_max_position_embeddings")
    if top is not None:
        out.setdefault("original_max_position_embeddings", top)
    return {"rope_type": kind, **out}


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    return _equal(a, b)


def _short(value: Any) -> str:
    if value is None:
        return "absent"
    return f"{len(value)} numbers" if isinstance(value, list) else _said(value)[:60]
