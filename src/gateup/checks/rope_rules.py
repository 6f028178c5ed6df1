"""Rotary embeddings: the base and its scaling against the positions that the config promises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gateup.checks import known
from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding
from gateup.checks.rule import rule

KEYS = ("rope_parameters", "rope_scaling")
# Kinds of scaling that transformers, vLLM or llama.cpp know; "su" is longrope's first name.
KINDS = frozenset(
    {"default", "linear", "dynamic", "yarn", "longrope", "su", "llama3", "mrope", "proportional"}
)
LLAMA3_KEYS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
# What the classes take where the config is silent, as far as it is the same number in all engines.
DEFAULT_BASE = 10000.0
SILENT_MEANS_DEFAULT = frozenset({"llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2"})


class Rope(NamedTuple):
    """One set of rotary settings; Gemma 3 has one for each kind of layer.

    where   "rope_scaling", "rope_parameters.full_attention"
    kind    its rope_type, "" where none is given
    base    rope_theta; None: not given
    """

    where: str
    values: Mapping[str, Any]
    kind: str
    base: float | None


def ropes(config: Mapping[str, Any]) -> list[Rope]:
    """Every set of rotary settings in a config, old spelling (rope_scaling beside rope_theta) or
    new (rope_parameters, with the base inside)."""
    outer = known.number(config.get("rope_theta"))
    found = [_rope(where, values, outer) for where, values in _sets(config)]
    return found or [Rope("rope_theta", {}, "", outer)]


def _sets(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key in KEYS:
        values = config.get(key)
        if not isinstance(values, Mapping) or not values:
            continue
        inner = {k: v for k, v in values.items() if isinstance(v, Mapping)}
        if inner:
            yield from ((f"{key}.{k}", v) for k, v in inner.items())
        else:
            yield key, values
        return


def _rope(where: str, values: Mapping[str, Any], outer: float | None) -> Rope:
    kind = values.get("rope_type", values.get("type"))
    base = known.number(values.get("rope_theta"))
    return Rope(
        where, values, kind if isinstance(kind, str) else "", outer if base is None else base
    )


def _source(context: Context, where: str) -> str:
    return f"{context.source('config')}, field {where}"


@rule("semantics.rope_base", "The rotary base is the one the model was trained with")
def rope_base(context: Context) -> Iterable[Finding]:
    """rope_theta sets how fast positions turn: 10,000 in Llama 1 and 2, 500,000 in Llama 3,
    1,000,000 in Qwen2. Where config.json is silent, classes and engines take 10,000, and a model
    that was trained with more reads well for a few words and then falls apart.

        Llama-3-8B without rope_theta: 10,000 instead of 500,000

    A larger base than the original is how contexts are extended, and normal. More positions with
    the same base and no scaling are a promise the weights do not keep: beyond what it was trained
    on, a model repeats itself or writes noise.
    """
    spec = context.spec
    for rope in ropes(spec.config):
        if rope.base is not None and rope.base <= 0:
            yield Finding(
                "semantics.rope_base",
                "error",
                f"the rotary base is {rope.base:g}",
                (
                    Evidence(
                        rope.where,
                        f"{rope.base:g}",
                        "a number above 0",
                        _source(context, rope.where),
                    ),
                ),
                "Positions turn by base^(-2i/d): a base of 0 or less has no such powers.",
                "use the rope_theta of the original config.json",
            )
            return
    twins = [p for p in known.twins(spec) if known.number(p.config.get("rope_theta"))]
    if not twins:
        return
    base = _main_base(context)
    if base is None:
        return
    yield from _against_twins(context, base, twins)


def _main_base(context: Context) -> float | None:
    """The base of the layers that see everything; the class's own where the config is silent."""
    found = ropes(context.spec.config)
    full = next((r for r in found if r.where.endswith("full_attention")), found[-1])
    if full.base is None and context.spec.family in SILENT_MEANS_DEFAULT:
        return DEFAULT_BASE
    return full.base


def _unscaled_limit(config: Mapping[str, Any]) -> int:
    """Positions a known model reads without scaling."""
    scaled = [r for r in ropes(config) if r.kind not in ("", "default")]
    for source in (*(r.values for r in scaled), config if scaled else {}):
        original = known.number(source.get("original_max_position_embeddings"))
        if original:
            return int(original)
    return int(known.number(config.get("max_position_embeddings")) or 0)


def _against_twins(context: Context, base: float, twins: list[Any]) -> Iterable[Finding]:
    spec = context.spec
    bases = [float(p.config["rope_theta"]) for p in twins]
    said = ropes(spec.config)[-1].base is not None
    if base < min(bases) and not known.same(base, min(bases)):
        twin = twins[bases.index(min(bases))]
        yield Finding(
            "semantics.rope_base",
            "warning",
            f"the rotary base is {base:,.0f}; {twin.name}, of its shape, has {min(bases):,.0f}",
            (
                Evidence(
                    "rope_theta",
                    f"{base:g}" if said else f"absent, so {base:g}",
                    f"{min(bases):g}",
                    f"preset {twin.name}",
                ),
            ),
            "The weights were trained with the larger base; with the smaller one positions turn too"
            " fast, and text decays within a few sentences.",
            f"write rope_theta: {min(bases):g}",
            {"found": base, "expected": min(bases)},
        )
        return
    alike = [p for p, b in zip(twins, bases, strict=True) if known.same(b, base)]
    limits = [_unscaled_limit(p.config) for p in alike]
    promised = spec.max_position_embeddings or 0
    scaled = any(r.kind not in ("", "default") for r in ropes(spec.config))
    if context.checkpoint.kind == "gguf":
        return  # scaling stands in metadata that the description does not keep
    if alike and not scaled and 0 < max(limits) < promised:
        twin = alike[limits.index(max(limits))]
        yield Finding(
            "semantics.rope_base",
            "warning",
            f"{promised:,} positions are promised; {twin.name}, of the same base, has"
            f" {max(limits):,} without scaling",
            (
                Evidence(
                    "max_position_embeddings",
                    f"{promised:,}",
                    f"{max(limits):,}, or rope_scaling",
                    f"preset {twin.name}",
                ),
            ),
            "A larger number does not make the model read further: beyond the positions it was"
            " trained on it repeats itself or writes noise, unless it was trained again.",
            f"write max_position_embeddings: {max(limits)}, or add the rope_scaling it was trained"
            " with",
            {"promised": promised, "trained": max(limits)},
        )


@rule("semantics.rope_scaling", "Rotary scaling agrees with the positions the config promises")
def rope_scaling(context: Context) -> Iterable[Finding]:
    """rope_scaling stretches positions: linear divides them by factor, yarn and llama3 stretch the
    slow dimensions only, longrope has a factor for each pair of dimensions.

    With yarn, factor × original_max_position_embeddings is the new limit. Programs differ in which
    of the numbers they believe where that is not so: some take the factor, some the ratio of the
    two limits, and the attention scale follows from it.

        DeepSeek-V3   40 × 4,096 = 163,840     as max_position_embeddings says
        factor 4, original 32,768, max_position_embeddings 32,768: ratio 1 or factor 4?

    For llama3 the product is no rule: Llama 3.1 has 8 × 8,192 and promises 131,072. longrope needs
    rotary dimensions / 2 factors in each of its two lists.
    """
    for rope in ropes(context.spec.config):
        if not rope.values or rope.kind == "default":
            continue
        yield from _kind(context, rope)
        yield from _factor(context, rope)
        if rope.kind == "llama3":
            yield from _llama3(context, rope)
        if rope.kind in ("longrope", "su"):
            yield from _longrope(context, rope)


def _finding(
    context: Context,
    severity: Any,
    title: str,
    evidence: tuple[str, str, str],
    cause: str,
    remedy: str,
) -> Finding:
    subject, found, expected = evidence
    return Finding(
        "semantics.rope_scaling",
        severity,
        title,
        (Evidence(subject, found, expected, _source(context, subject)),),
        cause,
        remedy,
    )


def _kind(context: Context, rope: Rope) -> Iterable[Finding]:
    if rope.kind in KINDS:
        return
    if not rope.kind and not set(rope.values) - {"rope_theta", "partial_rotary_factor"}:
        return
    yield _finding(
        context,
        "warning",
        f"the kind of rotary scaling is {rope.kind!r:.40}" if rope.kind else "rope_type is missing",
        (f"{rope.where}.rope_type", repr(rope.kind)[:40], ", ".join(sorted(KINDS))),
        "A program that does not know the kind refuses the file, or leaves positions unscaled.",
        "use the rope_scaling of the original config.json",
    )


def _factor(context: Context, rope: Rope) -> Iterable[Finding]:
    raw = rope.values.get("factor")
    limit = context.spec.max_position_embeddings
    original = known.number(rope.values.get("original_max_position_embeddings"))
    if raw is not None:
        factor = known.number(raw)
        if factor is None or factor < 1:
            yield _finding(
                context,
                "error",
                f"the factor of rotary scaling is {str(raw)[:40]}",
                (f"{rope.where}.factor", repr(raw)[:40], "a number of 1 or more"),
                "Scaling stretches positions; a factor below 1 would press them together, and"
                " transformers refuses it.",
                "write the new limit divided by the old one",
            )
            return
        if rope.kind == "yarn" and original and limit and limit >= original:
            yield from _product(context, factor, original, limit)
    if original and limit and original > limit:
        yield _finding(
            context,
            "note",
            f"original_max_position_embeddings {original:,.0f} is more than"
            f" max_position_embeddings {limit:,}",
            (
                f"{rope.where}.original_max_position_embeddings",
                f"{original:,.0f}",
                f"at most {limit:,}",
            ),
            "The positions end before the scaling begins to matter: it is applied for nothing."
            " That is so where someone shortened the context to save memory.",
            "",
        )


def _product(context: Context, factor: float, original: float, limit: int) -> Iterable[Finding]:
    """yarn: the factor times the old limit is the new one."""
    if known.same(factor * original, limit):
        return
    # Qwen's model cards tell users to add factor 4 and leave the limit at the original 32,768.
    documented = known.same(original, limit)
    yield _finding(
        context,
        "note" if documented else "warning",
        f"yarn: {factor:g} × {original:,.0f} = {factor * original:,.0f} positions, but"
        f" max_position_embeddings is {limit:,}",
        ("max_position_embeddings", f"{limit:,}", f"{factor * original:,.0f}"),
        "vLLM multiplies and serves the product; transformers has taken the ratio of the limits,"
        f" {limit / original:g}, for the attention scale. The two disagree here.",
        f"write max_position_embeddings: {factor * original:.0f}, or factor: {limit / original:g}",
    )


def _llama3(context: Context, rope: Rope) -> Iterable[Finding]:
    if context.checkpoint.kind == "gguf":
        return  # the factors lie in a tensor, rope_freqs.weight
    missing = [k for k in LLAMA3_KEYS if known.number(rope.values.get(k)) is None]
    if missing:
        yield _finding(
            context,
            "error",
            f"llama3 scaling lacks {', '.join(missing)}",
            (rope.where, "absent", ", ".join(LLAMA3_KEYS)),
            "All four numbers go into the frequencies.",
            "Llama 3.1: factor 8, low_freq_factor 1, high_freq_factor 4,"
            " original_max_position_embeddings 8192; 3.2: factor 32",
        )
    elif rope.values["high_freq_factor"] <= rope.values["low_freq_factor"]:
        low, high = rope.values["low_freq_factor"], rope.values["high_freq_factor"]
        yield _finding(
            context,
            "error",
            f"llama3 scaling: high_freq_factor {high:g} is not above low_freq_factor {low:g}",
            (f"{rope.where}.high_freq_factor", f"{high:g}", f"more than {low:g}"),
            "Frequencies between the two are blended by dividing by their difference.",
            "Llama 3.1 has low 1, high 4",
        )


def _longrope(context: Context, rope: Rope) -> Iterable[Finding]:
    config = context.spec.config
    attention = next((x.attention for x in context.spec.layers if x.attention), None)
    share = known.number(config.get("partial_rotary_factor"))
    if share is None:
        share = known.number(rope.values.get("partial_rotary_factor")) or 1.0
    if attention is None:
        return
    pairs = int(attention.head_dim * share) // 2
    for key in ("short_factor", "long_factor"):
        factors = rope.values.get(key)
        count = len(factors) if isinstance(factors, list | tuple) else None
        if count == pairs:
            continue
        yield _finding(
            context,
            "error",
            f"longrope: {key} has {'no list' if count is None else count} of {pairs} factors",
            (f"{rope.where}.{key}", "no list" if count is None else str(count), str(pairs)),
            f"Each pair of the {2 * pairs} rotary dimensions (head_dim {attention.head_dim} ×"
            f" {share:g}) has a factor of its own.",
            "use the rope_scaling of the original config.json",
        )
