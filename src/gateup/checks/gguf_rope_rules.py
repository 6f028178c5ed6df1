"""A GGUF's rotary scaling: in its metadata, and in tensors of factors beside the weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gateup.checks import known
from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding, Severity
from gateup.checks.rope_rules import Rope, ropes
from gateup.checks.rule import rule
from gateup.checks.words import written
from gateup.files.header import clip

# What llama.cpp knows under rope.scaling.type.
TYPES = ("none", "linear", "yarn", "longrope")
FREQS, LONG = "rope_freqs.weight", "rope_factors_long.weight"


class Scaling(NamedTuple):
    """What the metadata say. head: "llama.rope.scaling."; None: the key is absent."""

    head: str
    kind: str | None
    factor: float | None
    original: float | None


def scaling_of(metadata: Mapping[str, Any]) -> Scaling:
    """The keys under rope.scaling, and the one that files from before October 2023 have."""
    arch = metadata.get("general.architecture")
    head = f"{arch}.rope.scaling."
    kind, factor = metadata.get(head + "type"), known.number(metadata.get(head + "factor"))
    if factor is None and kind is None:
        factor = known.number(metadata.get(f"{arch}.rope.scale_linear"))
        kind = None if factor is None else "linear"
    return Scaling(
        head,
        kind if kind is None or isinstance(kind, str) else clip(kind, 40),
        factor,
        known.number(metadata.get(head + "original_context_length")),
    )


@rule(
    "semantics.gguf_rope",
    "A GGUF has its model's rotary scaling",
    needs=["headers"],
    worst="warning",
)
def gguf_rope(context: Context) -> Iterable[Finding]:
    """A GGUF says rope.scaling.type, .factor and .original_context_length in its metadata; Llama
    3.1's scaling lies in a tensor, rope_freqs.weight, and Phi-3's in rope_factors_long and _short.
    A converter that knew none of it leaves a file that reads well up to the length the model was
    trained at first, and falls apart beyond:

        Llama-3.1-8B converted before July 2024    no rope_freqs.weight: wrong from 8,192 tokens on

    Engines take the metadata at their word. A type without a factor scales nothing, and yarn's
    factor × original_context_length should be context_length. What the scaling should be is known
    from the family, and from known models of the same sizes and length.
    """
    if context.checkpoint.kind != "gguf":
        return
    scaling = scaling_of(context.checkpoint.metadata)
    names = {h.name for h in context.checkpoint.headers}
    yield from _by_itself(context, scaling, names)
    twins = [p for p in known.nearest(context.spec) if _exact(context, p.config)]
    kinds = [full_scaling(p.config) for p in twins]
    if kinds and all(kinds):
        first = kinds[0]
        assert first is not None
        yield from against(context, scaling, names, twins[0].name, first)


def _exact(context: Context, config: Mapping[str, Any]) -> bool:
    return config.get("max_position_embeddings") == context.spec.max_position_embeddings


def full_scaling(config: Mapping[str, Any]) -> Rope | None:
    """The scaling of the layers that see everything; None where there is none."""
    found = [r for r in ropes(config) if not r.where.endswith("sliding_attention")]
    return next((r for r in found if r.kind not in ("", "default")), None)


def _finding(
    severity: Severity, title: str, evidence: tuple[str, str, str, str], cause: str, remedy: str
) -> Finding:
    return Finding("semantics.gguf_rope", severity, title, (Evidence(*evidence),), cause, remedy)


AGAIN = "convert the model again with a current converter, or take another file"


def _by_itself(context: Context, s: Scaling, names: set[str]) -> Iterable[Finding]:
    """What the metadata contradict in themselves."""
    if s.kind is not None and s.kind not in TYPES:
        yield _finding(
            "warning",
            f"the kind of rotary scaling is {s.kind[:40]!r}",
            (s.head + "type", s.kind[:40], ", ".join(TYPES), "llama.cpp"),
            "A kind that the engine does not know is refused, or nothing is scaled.",
            AGAIN,
        )
    elif s.kind in ("linear", "yarn") and (s.factor is None or s.factor <= 0):
        found = "absent" if s.factor is None else written(s.factor)
        yield _finding(
            "warning",
            f"rotary scaling is {s.kind}, and its factor is {found}: nothing is scaled",
            (s.head + "factor", found, "a number above 0", s.head + "type"),
            "llama.cpp takes a missing factor, or 0, for none.",
            AGAIN,
        )
    elif s.kind == "longrope" and LONG not in names:
        yield _finding(
            "warning",
            f"rotary scaling is longrope, and {LONG} is not in the file",
            (LONG, "absent", "a factor for each rotary pair", s.head + "type"),
            "Without its tables longrope scales nothing.",
            AGAIN,
        )
    elif s.kind == "yarn" and s.factor and s.original:
        promised = context.spec.max_position_embeddings or 0
        product = s.factor * s.original
        if promised > product and not known.same(promised, product):
            yield _finding(
                "warning",
                f"yarn: {written(s.factor)} × {s.original:,.0f} = {product:,.0f} positions;"
                f" {promised:,} are promised",
                ("context_length", f"{promised:,}", f"{product:,.0f}", s.head + "factor"),
                "Positions beyond the product turn further than the model was trained on.",
                f"run it with at most {product:,.0f} tokens, or write the factor"
                f" {written(promised / s.original)}",
            )


def against(
    context: Context, s: Scaling, names: set[str], twin: str, wanted: Rope
) -> Iterable[Finding]:
    """What a known model of the same sizes and length has."""
    tensor = {"llama3": FREQS, "longrope": LONG, "su": LONG}.get(wanted.kind)
    factor = known.number(wanted.values.get("factor"))
    if tensor is not None:
        if tensor not in names and s.kind in (None, "none"):
            start = known.number(wanted.values.get("original_max_position_embeddings"))
            start = start or known.number(
                context.spec.config.get("original_max_position_embeddings")
            )
            yield _finding(
                "warning",
                f"{tensor} is not in the file: the {wanted.kind} scaling of {twin} is lost",
                (tensor, "absent", f"{wanted.kind} scaling", f"preset {twin}"),
                "The converter did not know this scaling. The model reads well"
                + (f" up to {start:,.0f} tokens" if start else " at first")
                + " and falls apart beyond.",
                AGAIN,
            )
    elif wanted.kind in ("linear", "yarn") and factor:
        right = s.kind == wanted.kind and s.factor is not None and known.same(s.factor, factor)
        if not right and not (s.kind in ("linear", "yarn") and not s.factor):
            said = f"{s.kind or 'none'}" + (f", factor {written(s.factor)}" if s.factor else "")
            yield _finding(
                "warning",
                f"rotary scaling is {said}; {twin} has {wanted.kind}, factor {written(factor)}",
                (
                    s.head + "type",
                    said,
                    f"{wanted.kind}, factor {written(factor)}",
                    f"preset {twin}",
                ),
                "The model was trained with this scaling; with another one long texts fall apart.",
                AGAIN,
            )
