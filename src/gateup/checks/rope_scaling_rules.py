"""Rotary scaling: the keys that its kind needs, of which type and sign, against the positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import NamedTuple

from gateup.checks import known
from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding, Severity
from gateup.checks.rope_rules import KEYS, Rope, ropes
from gateup.checks.rule import rule
from gateup.checks.words import written
from gateup.files.header import clip

ORIGINAL = "original_max_position_embeddings"


class Demands(NamedTuple):
    """What a kind of scaling reads [source: transformers 5.24, modeling_rope_utils].

    needed   keys without which transformers raises KeyError
    numbers  keys that must be numbers above 0 where they are given
    lists    keys that must be lists of numbers above 0
    old      it counts from ORIGINAL; transformers puts max_position_embeddings where it is absent
    """

    needed: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    old: bool = False


_YARN = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim")
_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor")
_LONG = ("short_factor", "long_factor")
KINDS: Mapping[str, Demands] = {
    "default": Demands(),
    "proportional": Demands(),
    "linear": Demands(("factor",), ("factor",)),
    "dynamic": Demands(("factor",), ("factor",)),
    "yarn": Demands(("factor",), ("factor", ORIGINAL, *_YARN), old=True),
    "llama3": Demands(_LLAMA3, (*_LLAMA3, ORIGINAL), old=True),
    "longrope": Demands(_LONG, ("factor", ORIGINAL, "attention_factor"), _LONG, old=True),
}
# longrope's first name, which one family's class still translates.
SU, SU_FAMILY = "su", "phi3"


@rule("semantics.rope_scaling", "Rotary scaling has what its kind needs, and fits the positions")
def rope_scaling(context: Context) -> Iterable[Finding]:
    """rope_scaling stretches positions: linear and dynamic divide them by factor, yarn and llama3
    stretch the slow dimensions only, longrope has a factor for each pair of dimensions.

        linear, dynamic    factor
        yarn               factor; original_max_position_embeddings
        llama3             factor, low_freq_factor, high_freq_factor; original_max_…
        longrope           short_factor, long_factor (rotary dimensions / 2 each); original_max_…

    Without a key before the semicolon, with text in place of a number, or under a rope_type it does
    not know, transformers does not load the model. A number of the wrong sign loads and computes
    garbage.

    With yarn, factor × original_max_position_embeddings is the new limit. Programs differ in which
    of the numbers they believe where that is not so: some take the factor, some the ratio of the
    two limits, and the attention scale follows from it.

        DeepSeek-V3   40 × 4,096 = 163,840     as max_position_embeddings says
        factor 4, original 32,768, max_position_embeddings 32,768: ratio 1 or factor 4?

    For llama3 the product is no rule: Llama 3.1 has 8 × 8,192 and promises 131,072.
    """
    if context.checkpoint.kind == "gguf":
        return  # its own keys and tables: semantics.gguf_rope
    yield from _no_object(context)
    for rope in ropes(context.spec.config):
        if not rope.values:
            continue
        kind = _kind_of(context, rope)
        if isinstance(kind, Finding):
            yield kind
            continue
        if kind in ("", "default"):
            continue
        yield from _missing(context, rope, kind)
        yield from _wrong(context, rope, kind)
        yield from _positions(context, rope, kind)
        if kind == "llama3":
            yield from _llama3(context, rope)
        if kind == "longrope":
            yield from _longrope(context, rope)


def _finding(
    context: Context,
    severity: Severity,
    title: str,
    evidence: tuple[str, str, str] | tuple[Evidence, ...],
    cause: str,
    remedy: str,
) -> Finding:
    shown = tuple(e for e in evidence if isinstance(e, Evidence))
    if not shown:
        subject, found, expected = map(str, evidence)
        shown = (Evidence(subject, found, expected, _source(context, subject)),)
    return Finding("semantics.rope_scaling", severity, title, shown, cause, remedy)


def _source(context: Context, where: object) -> str:
    return f"{context.source('config')}, field {where}"


ORIGINALS = "use the rope_scaling of the original config.json"


def _no_object(context: Context) -> Iterable[Finding]:
    """rope_scaling: "linear", rope_parameters: -1."""
    for key in KEYS:
        value = context.spec.config.get(key)
        if value is None or isinstance(value, Mapping):
            continue
        yield _finding(
            context,
            "error",
            f"{key} is {clip(value, 40)}, no object",
            (key, clip(value, 60), 'null, or an object as {"rope_type": "linear", "factor": 2.0}'),
            "transformers refuses it; a program that takes it for nothing scales nothing.",
            ORIGINALS
            + ("; the rotary base's key is rope_theta" if known.number(value) is not None else ""),
        )


def _kind_of(context: Context, rope: Rope) -> str | Finding:
    """The kind under the name that KINDS has, or what is wrong with it."""
    raw = rope.values.get("rope_type", rope.values.get("type"))
    given = "rope_type" if "rope_type" in rope.values else "type"
    extra = set(rope.values) - {"rope_theta", "partial_rotary_factor", "rope_type", "type"}
    if raw is None and given not in rope.values:
        if not extra:
            return ""
        return _finding(
            context,
            "warning",
            "rope_type is missing",
            (f"{rope.where}.rope_type", "absent", ", ".join(KINDS)),
            f"transformers takes it for default and ignores {', '.join(sorted(extra)[:4])}: nothing"
            " is scaled.",
            ORIGINALS,
        )
    if raw == SU and context.spec.family == SU_FAMILY:
        return "longrope"
    if isinstance(raw, str) and raw in KINDS:
        return raw
    near = get_close_matches(str(raw).lower(), KINDS, n=1, cutoff=0.7)
    if raw == SU:
        near = ["longrope"]
    return _finding(
        context,
        "error",
        f"transformers knows no rotary scaling {clip(raw, 40)}",
        (f"{rope.where}.{given}", clip(raw, 60), ", ".join(KINDS)),
        "It raises KeyError while it builds the model; other programs refuse the file or leave"
        " positions unscaled.",
        f'write "{near[0]}"' if near else ORIGINALS,
    )


def _missing(context: Context, rope: Rope, kind: str) -> Iterable[Finding]:
    demands, values = KINDS[kind], rope.values
    # yarn's factor may be null: transformers takes the ratio of the limits.
    absent = [
        k for k in demands.needed if values.get(k) is None and not (kind == "yarn" and k in values)
    ]
    if absent:
        yield _finding(
            context,
            "error",
            f"{kind} scaling lacks {', '.join(absent)}",
            tuple(
                Evidence(
                    f"{rope.where}.{k}",
                    "null" if k in values else "absent",
                    "a list of numbers" if k in demands.lists else "a number",
                    f'{_source(context, rope.where)}, rope_type "{kind}"',
                )
                for k in absent
            ),
            "transformers reads them while it builds the model and stops with an error.",
            "Llama 3.1: factor 8, low_freq_factor 1, high_freq_factor 4,"
            " original_max_position_embeddings 8192; 3.2: factor 32"
            if kind == "llama3"
            else ORIGINALS
            if kind == "longrope"
            else "write factor: the new limit of positions divided by the old one",
        )
    top = context.spec.config.get(ORIGINAL)
    if demands.old and values.get(ORIGINAL) is None and top is None:
        limit = context.spec.max_position_embeddings
        yield _finding(
            context,
            "error" if kind == "llama3" else "warning",
            f"{kind} scaling lacks {ORIGINAL}",
            (
                f"{rope.where}.{ORIGINAL}",
                "absent" if ORIGINAL not in values else "null",
                "the limit the model was trained at first",
            ),
            "Which dimensions are stretched follows from the original limit. transformers takes"
            f" max_position_embeddings{f' ({limit:,})' if limit else ''} for it, vLLM refuses the"
            " model.",
            "Llama 3.1 and 3.2: original_max_position_embeddings 8192"
            if kind == "llama3"
            else ORIGINALS,
        )


def _wrong(context: Context, rope: Rope, kind: str) -> Iterable[Finding]:
    """Values that are no numbers, or of the wrong sign."""
    demands = KINDS[kind]
    for key in demands.numbers:
        if rope.values.get(key) is None and not (kind == "yarn" and key == "factor"):
            continue  # absent: either not needed, or reported
        if key not in rope.values:
            continue
        raw = rope.values[key]
        value = known.number(raw)
        if raw is None and kind == "yarn":  # only transformers reads it, as the ratio of the limits
            yield _finding(
                context,
                "warning",
                f"the {key} of {kind} scaling is null",
                (f"{rope.where}.{key}", "null", "a number of 1 or more"),
                f"transformers takes max_position_embeddings / {ORIGINAL} for it; other programs"
                " do not.",
                "write the new limit divided by the old one",
            )
        elif value is None:
            yield _finding(
                context,
                "error",
                f"the {key} of {kind} scaling is {clip(raw, 40)}",
                (f"{rope.where}.{key}", clip(raw, 60), "a number"),
                "transformers computes with it and stops with a TypeError."
                if not isinstance(raw, bool)
                else "It counts as 0 or 1.",
                "write a number without quotes" if isinstance(raw, str) else ORIGINALS,
            )
        elif value <= 0 or (key == "factor" and value < 1):
            yield _finding(
                context,
                "error",
                f"the {key} of {kind} scaling is {written(value)}",
                (
                    f"{rope.where}.{key}",
                    written(value),
                    "a number of 1 or more" if key == "factor" else "a number above 0",
                ),
                "Scaling stretches positions; a factor below 1 presses them together, 0 divides by"
                " zero, a negative one turns them backwards. transformers warns and goes on."
                if key == "factor"
                else "A logarithm is taken of it, or it is divided by, or every query and key is"
                " multiplied by it.",
                "write the new limit divided by the old one" if key == "factor" else ORIGINALS,
            )
    fast, slow = (known.number(rope.values.get(k)) for k in ("beta_fast", "beta_slow"))
    if kind == "yarn" and 0 < (fast or 32) < (slow or 1):
        yield _finding(
            context,
            "warning",
            f"yarn: beta_fast {written(fast or 32)} is less than beta_slow {written(slow or 1)}",
            (f"{rope.where}.beta_fast", written(fast or 32), f"more than {written(slow or 1)}"),
            "Dimensions that turn more often than beta_fast stay, those below beta_slow are"
            " stretched; exchanged, the ramp between them runs the wrong way.",
            "beta_fast 32, beta_slow 1 are the usual ones",
        )


def _positions(context: Context, rope: Rope, kind: str) -> Iterable[Finding]:
    limit = context.spec.max_position_embeddings
    original = known.number(rope.values.get(ORIGINAL))
    factor = known.number(rope.values.get("factor"))
    if kind == "yarn" and factor and factor >= 1 and original and limit and limit >= original > 0:
        yield from _product(context, factor, original, limit)
    if original and limit and original > limit:
        yield _finding(
            context,
            "note",
            f"{ORIGINAL} {original:,.0f} is more than max_position_embeddings {limit:,}",
            (f"{rope.where}.{ORIGINAL}", f"{original:,.0f}", f"at most {limit:,}"),
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
    ratio = written(limit / original)
    yield _finding(
        context,
        "note" if documented else "warning",
        f"yarn: {written(factor)} × {original:,.0f} = {factor * original:,.0f} positions, but"
        f" max_position_embeddings is {limit:,}",
        ("max_position_embeddings", f"{limit:,}", f"{factor * original:,.0f}"),
        "vLLM multiplies and serves the product; transformers has taken the ratio of the limits,"
        f" {ratio}, for the attention scale. The two disagree here.",
        f"write max_position_embeddings: {factor * original:.0f}, or factor: {ratio}",
    )


def _llama3(context: Context, rope: Rope) -> Iterable[Finding]:
    low, high = (known.number(rope.values.get(f"{k}_freq_factor")) for k in ("low", "high"))
    if low is not None and high is not None and high <= low:
        yield _finding(
            context,
            "error",
            f"llama3 scaling: high_freq_factor {written(high)} is not above low_freq_factor"
            f" {written(low)}",
            (f"{rope.where}.high_freq_factor", written(high), f"more than {written(low)}"),
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
    for key in _LONG:
        if rope.values.get(key) is None:
            continue
        factors = rope.values[key]
        count = len(factors) if isinstance(factors, list | tuple) else None
        odd = [f for f in factors if not (known.number(f) or 0) > 0] if count is not None else []
        if count == pairs and not odd:
            continue
        wrong = "no list" if count is None else str(count)
        if odd and count == pairs:
            yield _finding(
                context,
                "error",
                f"longrope: {key} has {len(odd)} of {pairs} factors that are no number above 0",
                (f"{rope.where}.{key}", clip(odd[0], 40), "numbers above 0"),
                "Each divides the frequency of a pair.",
                ORIGINALS,
            )
            continue
        yield _finding(
            context,
            "error",
            f"longrope: {key} has {wrong} of {pairs} factors",
            (f"{rope.where}.{key}", wrong, str(pairs)),
            f"Each pair of the {2 * pairs} rotary dimensions (head_dim {attention.head_dim} ×"
            f" {written(share)}) has a factor of its own.",
            ORIGINALS,
        )
