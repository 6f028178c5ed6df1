"""Rotary embeddings: the base and its scaling against the positions that the config promises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gateup.checks import known
from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding
from gateup.checks.rule import rule
from gateup.checks.words import written
from gateup.files.header import clip
from gateup.model.presets import PRESETS

KEYS = ("rope_parameters", "rope_scaling")
# What the classes take where the config is silent, as far as it is the same number in all engines.
DEFAULT_BASE = 10000.0
# Published bases go from 10000 to 4.5e10, of Llama 3 stretched to 4 million positions.
LOWEST, HIGHEST = 1e2, 1e11
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
    odd = next(_no_base(spec.config), None)
    if odd is not None:
        where, value = odd
        text = isinstance(value, str)
        yield Finding(
            "semantics.rope_base",
            "error",
            f"the rotary base is {_shown(value)}",
            (Evidence(where, _shown(value), "a number above 1", _source(context, where)),),
            "transformers computes with the text and stops with a TypeError."
            if text
            else "Positions turn by base^(-2i/d): a base of 0 or less has no such powers, and with"
            " 1 all dimensions turn alike.",
            "write the number without quotes"
            if text
            else "use the rope_theta of the original config.json",
        )
        return
    far = [r for r in ropes(spec.config) if r.base is not None and not LOWEST <= r.base <= HIGHEST]
    if far:
        yield _implausible(context, far[0])
        return
    twins = [p for p in known.twins(spec) if known.number(p.config.get("rope_theta"))]
    if not twins:
        return
    base = _main_base(context)
    if base is None:
        return
    yield from _against_twins(context, base, twins)


def _implausible(context: Context, rope: Rope) -> Finding:
    """A base that no published model is near."""
    base = rope.base or 0.0
    where = f"{rope.where}.rope_theta" if "rope_theta" in rope.values else "rope_theta"
    bases = sorted(
        {
            float(p.config["rope_theta"])
            for p in PRESETS.values()
            if p.config.get("model_type") == context.spec.family and p.config.get("rope_theta")
        }
    )
    usual = ", ".join(map(written, bases)) or "10000 to 10000000"
    return Finding(
        "semantics.rope_base",
        "warning",
        f"the rotary base is {written(base)}; {context.spec.family} models have {usual}",
        (Evidence(where, written(base), usual, _source(context, where)),),
        "With so small a base every dimension turns by a radian or so a position, and positions a"
        " few tokens apart look alike."
        if base < LOWEST
        else "With so large a base hardly a dimension turns within the context, and the model sees"
        " no order in most of them.",
        "use the rope_theta of the original config.json",
        {"found": base},
    )


def _no_base(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(field, value) of every rope_theta that is no base."""
    places = [("rope_theta", config), *((f"{w}.rope_theta", v) for w, v in _sets(config))]
    for where, values in places:
        value = values.get("rope_theta")
        if value is None:
            continue
        base = known.number(value)
        if base is None or base <= 1:
            yield where, value


def _shown(value: Any) -> str:
    number = known.number(value)
    return clip(value, 60) if number is None else written(number)


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
                    written(base) if said else f"absent, so {written(base)}",
                    written(min(bases)),
                    f"preset {twin.name}",
                ),
            ),
            "The weights were trained with the larger base; with the smaller one positions turn too"
            " fast, and text decays within a few sentences.",
            f"write rope_theta: {written(min(bases))}",
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
