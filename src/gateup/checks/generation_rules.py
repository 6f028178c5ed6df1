"""Generation settings: why the output is always the same, repeats itself, or never ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateup.checks import known
from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding, Severity
from gateup.checks.generation_usual import in_range
from gateup.checks.rule import rule
from gateup.checks.words import typed, written

# One setting under the names of transformers, llama.cpp, vLLM and the OpenAI API.
NAMES: Mapping[str, tuple[str, ...]] = {
    "temperature": ("temperature", "temp"),
    "top_p": ("top_p", "top-p"),
    "top_k": ("top_k", "top-k"),
    "min_p": ("min_p", "min-p"),
    "typical_p": ("typical_p", "typical"),
    "repetition_penalty": ("repetition_penalty", "repeat_penalty", "repeat-penalty"),
    "presence_penalty": ("presence_penalty", "presence-penalty"),
    "frequency_penalty": ("frequency_penalty", "frequency-penalty"),
    "no_repeat_ngram_size": ("no_repeat_ngram_size",),
    "max_new_tokens": ("max_new_tokens", "max_tokens", "n_predict", "n-predict"),
    "min_new_tokens": ("min_new_tokens", "min_tokens"),
    "max_length": ("max_length",),
    "num_return_sequences": ("num_return_sequences", "n"),
    "num_beams": ("num_beams",),
    "seed": ("seed",),
}
# Settings that only sampling uses, and the value that means "off" in transformers.
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 50.0, "min_p": 0.0, "typical_p": 1.0}
# Below this a nucleus holds one token at nearly every step: the best token of a model that knows
# its language has 30% or more at most positions.
NARROW = 0.3
COLD = 0.05  # at this temperature a lead of 0.15 in the logits is a factor of 20
TINY = 8  # new tokens
# Families whose authors say not to decode greedily: where they say it.
LOOPS_GREEDILY = {
    "qwen3": "Qwen3's model card: do not decode greedily in thinking mode; temperature 0.6",
    "qwen3_moe": "Qwen3's model card: do not decode greedily in thinking mode; temperature 0.6",
}


def _raw(settings: Mapping[str, Any], name: str) -> tuple[str, Any] | None:
    """(key as written, value) of a setting under any of its names; None where it is not set."""
    for key in NAMES[name]:
        if settings.get(key) is not None:
            return key, settings[key]
    return None


def _number(settings: Mapping[str, Any], name: str) -> float | None:
    found = _raw(settings, name)
    return None if found is None else known.number(found[1])


def _key(settings: Mapping[str, Any], name: str) -> str:
    found = _raw(settings, name)
    return name if found is None else found[0]


def _settings(context: Context) -> Mapping[str, Any]:
    return context.generation or {}


def _finding(
    context: Context,
    id: str,
    severity: Severity,
    title: str,
    evidence: tuple[str, object, str],
    cause: str,
    remedy: str,
    **numbers: float | str,
) -> Finding:
    key, value, expected = evidence
    source = f"{context.source('generation')}, field {key}"
    shown = typed(value)[:60]
    return Finding(
        f"generation.{id}",
        severity,
        title,
        (Evidence(key, shown, expected, source),),
        cause,
        remedy,
        numbers,
    )


def samples(context: Context) -> bool:
    """Whether the settings choose at random.

    do_sample decides where it stands. Without it transformers does not sample, and its
    generation_config.json is what it reads; settings given under other names or in another file
    are those of engines that sample unless temperature is 0.
    """
    settings = _settings(context)
    if _number(settings, "temperature") == 0:
        return False
    if settings.get("do_sample") is not None:
        return settings["do_sample"] is True
    if is_transformers_file(context):
        return False
    return any(_raw(settings, name) is not None for name in SAMPLING)


def is_transformers_file(context: Context) -> bool:
    """Whether the settings are a generation_config.json, which transformers reads as it stands."""
    if "transformers_version" in _settings(context):
        return True
    return context.source("generation").replace("\\", "/").endswith("generation_config.json")


@rule("generation.values", "Every setting is a number in its range", needs=("generation",))
def values(context: Context) -> Iterable[Finding]:
    """Settings that engines refuse, each with its own message, or worse take as something else: a
    number written as text, top_p above 1, a negative temperature, max_new_tokens 0.

        temperature: "0.7"          text; comparing it with a number fails deep inside
        top_p: 90                   percent are meant; the nucleus is 0 to 1
        num_return_sequences: 4     without sampling or beams: four times the same, refused
    """
    settings = _settings(context)
    ranges: dict[str, tuple[float, float]] = {
        "temperature": (0, 100),
        "top_p": (0, 1),
        "min_p": (0, 1),
        "typical_p": (0, 1),
        "top_k": (-1, 1 << 24),
        "max_new_tokens": (-2, 1 << 40),  # llama.cpp: -1 without end, -2 until the context is full
        "num_beams": (1, 1 << 16),
    }
    for name in NAMES:
        found = _raw(settings, name)
        if found is None:
            continue
        key, value = found
        low, high = ranges.get(name, (-1e300, 1e300))
        number = known.number(value)
        zero = name == "max_new_tokens" and number == 0
        if number is not None and low <= number <= high and not zero:
            continue
        wanted = (
            f"a number from {written(low)} to {written(high)}" if name in ranges else "a number"
        )
        yield _finding(
            context,
            "values",
            "error",
            f"{key} is {value!r:.40}",
            (key, repr(value), "1 or more" if zero else wanted),
            "A number written as text is compared as text, or refused deep inside the engine."
            if isinstance(value, str)
            else "Outside its range the setting has no meaning; engines refuse it.",
            in_range(key, name, value, "1 or more" if zero else wanted),
        )
    many = _number(settings, "num_return_sequences")
    beams = _number(settings, "num_beams") or 1
    if many is not None and many > 1 and beams == 1 and not samples(context):
        yield _finding(
            context,
            "values",
            "error",
            f"{written(many)} sequences are asked for, and greedy decoding has only one",
            (_key(settings, "num_return_sequences"), written(many), "1, or do_sample true"),
            "Without sampling or beams every sequence is the same; transformers refuses it.",
            "set do_sample to true, or num_beams to at least as many",
        )


@rule("generation.greedy", "Sampling settings are not left without sampling", needs=("generation",))
def greedy(context: Context) -> Iterable[Finding]:
    """Why is my output always the same? Because nothing is drawn at random: do_sample is false (in
    transformers also where it is absent) or temperature is 0. The most probable token is taken at
    every step; a seed changes nothing, and temperature, top_p and top_k are not looked at.

        do_sample false, temperature 0.7, top_p 0.9     the same text for every seed

    It is no fault of the model. And why does it repeat itself? Small models and reasoning models
    fall into loops under greedy decoding, because a phrase once repeated makes itself more
    probable; Qwen3's authors say not to. Sample with temperature 0.6 to 0.8 instead of fighting
    the loop with penalties.
    """
    settings = _settings(context)
    temperature = _number(settings, "temperature")
    if temperature == 0 and settings.get("do_sample") is True:
        yield _finding(
            context,
            "greedy",
            "error",
            "do_sample is true and temperature is 0",
            (_key(settings, "temperature"), 0, "above 0, or do_sample false"),
            "Logits are divided by the temperature; transformers refuses 0, llama.cpp and vLLM take"
            " it for greedy decoding.",
            "set do_sample to false for greedy decoding, or temperature to 0.7",
        )
        return
    if samples(context):
        return
    ignored = _ignored(settings, temperature)
    explicit = settings.get("do_sample") is False or temperature == 0
    if ignored:
        yield _ignored_finding(context, ignored)
    elif explicit:
        yield _finding(
            context,
            "greedy",
            "note",
            "decoding is greedy: the same prompt gives the same text every time",
            ("temperature" if temperature == 0 else "do_sample", "greedy", ""),
            "The most probable token is taken at every step, whatever the seed.",
            "for variety set do_sample to true, with temperature 0.7 and top_p 0.9",
        )
    family = context.spec.family
    if explicit and family in LOOPS_GREEDILY:
        yield Finding(
            "generation.greedy",
            "warning",
            f"greedy decoding makes {family} repeat itself",
            (Evidence("do_sample", "false", "true", LOOPS_GREEDILY[family]),),
            "A phrase once repeated makes itself more probable, and nothing ends it.",
            "do_sample true, temperature 0.6, top_p 0.95, top_k 20",
        )


def _ignored(settings: Mapping[str, Any], temperature: float | None) -> dict[str, Any]:
    """Settings that have no effect without sampling, and are not at their default."""
    found = {}
    for name, off in SAMPLING.items():
        entry, number = _raw(settings, name), _number(settings, name)
        if entry is None or number is None or number == off:
            continue
        if name == "temperature" and temperature == 0:
            continue
        found[entry[0]] = entry[1]
    seed = _raw(settings, "seed")
    if seed is not None and found:
        found[seed[0]] = seed[1]
    return found


def _ignored_finding(context: Context, ignored: Mapping[str, Any]) -> Finding:
    settings = _settings(context)
    source = context.source("generation")
    zero = _number(settings, "temperature") == 0
    why = "temperature 0" if zero else "do_sample false"
    if not zero and settings.get("do_sample") is None:
        why = "do_sample absent, which means false"
    return Finding(
        "generation.greedy",
        "warning",
        f"{', '.join(ignored)} {'is' if len(ignored) == 1 else 'are'} ignored: {why}",
        tuple(
            Evidence(k, str(v)[:60], "unset, or do_sample true", f"{source}, field {k}")
            for k, v in ignored.items()
        ),
        "Without sampling the most probable token is taken at every step: the same prompt gives the"
        " same text for every seed.",
        "set a temperature above 0" if zero else "set do_sample to true",
        {"ignored": ", ".join(ignored)},
    )


@rule(
    "generation.narrow",
    "Sampling leaves something to choose from",
    needs=("generation",),
    worst="warning",
)
def narrow(context: Context) -> Iterable[Finding]:
    """Why is my output the same for every seed, although I sample? Because only one token is left.
    top_p keeps the most probable tokens until their sum reaches p: if the best one has p or more
    by itself, it is the only candidate.

        temperature 0.7, top_k 40, top_p 0.1, seeds differ: the same text
        with top_p 0.1 a best token of 10% or more is alone, which is nearly every step

    top_k 1 is greedy decoding, and so in effect is a temperature near 0. It is a setting, not a
    fault of the model or of the seed.
    """
    settings = _settings(context)
    if not samples(context):
        return
    top_p, top_k = _number(settings, "top_p"), _number(settings, "top_k")
    temperature, min_p = _number(settings, "temperature"), _number(settings, "min_p")
    if top_p is not None and 0 <= top_p <= NARROW:
        yield _finding(
            context,
            "narrow",
            "warning",
            f"top_p {written(top_p)} leaves one candidate at nearly every step: seeds cannot"
            " matter",
            (_key(settings, "top_p"), written(top_p), "0.8 to 0.95"),
            f"A best token of {top_p:.0%} or more reaches top_p alone and is the only candidate. It"
            " is the setting, not the model or the seed.",
            "raise top_p to 0.9",
            top_p=top_p,
        )
    if top_k == 1:
        yield _finding(
            context,
            "narrow",
            "warning",
            "top_k 1 is greedy decoding: seeds cannot matter",
            (_key(settings, "top_k"), 1, "20 to 50, or 0 for no limit"),
            "Only the most probable token is kept, so there is nothing to draw from.",
            "raise top_k to 40, or set do_sample to false if this is what you want",
        )
    if temperature is not None and 0 < temperature <= COLD:
        yield _finding(
            context,
            "narrow",
            "warning",
            f"temperature {written(temperature)} is greedy decoding in effect",
            (_key(settings, "temperature"), written(temperature), "0.6 to 1"),
            f"Logits are divided by {written(temperature)}: a lead of 0.5 becomes one of"
            f" {0.5 / temperature:.3g}, and the runner-up is never drawn.",
            "raise the temperature to 0.7, or say greedy: do_sample false",
            temperature=temperature,
        )
    if min_p is not None and 0.5 <= min_p <= 1:
        yield _finding(
            context,
            "narrow",
            "warning",
            f"min_p {written(min_p)} leaves one candidate at nearly every step",
            (_key(settings, "min_p"), written(min_p), "0.05 to 0.1"),
            f"Only tokens with {min_p:.0%} of the best one's probability or more are kept.",
            "lower min_p to 0.05",
        )
    if temperature is not None and temperature > 2:
        yield _finding(
            context,
            "narrow",
            "warning",
            f"temperature {written(temperature)} draws nearly at random",
            (_key(settings, "temperature"), written(temperature), "0.6 to 1"),
            f"Logits are divided by {written(temperature)}: differences the model learned hardly"
            " count.",
            "lower the temperature to 0.7",
        )


@rule("generation.penalty", "Penalties on repetition are within reason", needs=("generation",))
def penalty(context: Context) -> Iterable[Finding]:
    """repetition_penalty divides the positive logits of every token that has occurred, the
    prompt's included, and multiplies the negative ones. 1 is off, 1.05 to 1.2 is usual.

        1.5    names, digits and punctuation can hardly recur: text drifts
        0.8    repetition is rewarded: loops
        0      division by zero; transformers refuses it

    no_repeat_ngram_size n forbids any n tokens to occur twice. 1 forbids every token a second
    time; 2 or 3 forbid names, code, lists and JSON. Why does the model repeat itself, then?
    Mostly because decoding is greedy; sampling helps more than penalties.
    """
    settings = _settings(context)
    factor = _number(settings, "repetition_penalty")
    key = _key(settings, "repetition_penalty")
    if factor is not None and not 1 <= factor <= 2:
        worst: Severity = "error" if factor <= 0 else "warning"
        cause = (
            "Logits are divided by it: 0 or less has no meaning, and transformers refuses it."
            if factor <= 0
            else "Below 1 it rewards every token that has occurred: loops follow."
            if factor < 1
            else "Every token that has occurred, commas and digits included, becomes improbable:"
            " text drifts into rare words."
        )
        yield _finding(
            context,
            "penalty",
            worst,
            f"{key} is {written(factor)}",
            (key, written(factor), "1 (off) to 1.2"),
            cause,
            "write 1.1, or 1 for none",
            penalty=factor,
        )
    for name in ("presence_penalty", "frequency_penalty"):
        value = _number(settings, name)
        if value is not None and not -2 <= value <= 2:
            yield _finding(
                context,
                "penalty",
                "warning",
                f"{name} is {written(value)}",
                (_key(settings, name), written(value), "-2 to 2"),
                "It is subtracted from logits; engines with the OpenAI API refuse more than 2.",
                "write 0 to 1",
            )
    size = _number(settings, "no_repeat_ngram_size")
    if size is not None and 1 <= size <= 3:
        yield _finding(
            context,
            "penalty",
            "warning",
            f"no_repeat_ngram_size {written(size)} forbids {_forbidden(int(size))} to occur twice",
            ("no_repeat_ngram_size", written(size), "0 (off), or 4 and more"),
            "It counts the prompt too: a name, a bracket or a line of a list cannot come again.",
            "write 0, and sample instead if the model loops",
        )


def _forbidden(size: int) -> str:
    return "any token" if size == 1 else f"any {size} tokens in a row"


@rule("generation.length", "There is room for an answer", needs=("generation",))
def length(context: Context) -> Iterable[Finding]:
    """Why does the answer stop in the middle? max_new_tokens is how many tokens may be written;
    max_length counts the prompt too. transformers' own default is max_length 20, where neither is
    set.

        max_new_tokens 4               an answer of one word
        max_length 512, prompt of 600  nothing can be written

    Reasoning models write thousands of tokens before the answer.
    """
    settings = _settings(context)
    key, new = _key(settings, "max_new_tokens"), _number(settings, "max_new_tokens")
    total, least = _number(settings, "max_length"), _number(settings, "min_new_tokens")
    limit = context.spec.max_position_embeddings
    if new is not None and 0 < new <= TINY:
        yield _finding(
            context,
            "length",
            "warning",
            f"{key} {written(new)} ends every answer after {written(new)} tokens",
            (key, written(new), "128 and more"),
            "A token is about three quarters of an English word.",
            "raise it; the end-of-sequence token stops shorter answers by itself",
            tokens=new,
        )
    if new is None and total is not None and 0 < total <= 32:
        yield _finding(
            context,
            "length",
            "warning",
            f"max_length {written(total)} counts the prompt: hardly anything can be written",
            ("max_length", written(total), "max_new_tokens instead"),
            "max_length is the prompt and the answer together.",
            "set max_new_tokens to 256 or more and drop max_length",
        )
    if new is not None and least is not None and least > new > 0:
        yield _finding(
            context,
            "length",
            "error",
            f"{_key(settings, 'min_new_tokens')} {written(least)} is more than {key}"
            f" {written(new)}",
            (_key(settings, "min_new_tokens"), written(least), f"at most {written(new)}"),
            "The end is forbidden until after the last token that may be written.",
            f"lower it to less than {written(new)}",
        )
    for name, value in ((key, new), ("max_length", total)):
        if value is not None and limit and value > limit:
            yield _finding(
                context,
                "length",
                "warning",
                f"{name} {value:,.0f} is more than the model's {limit:,} positions",
                (name, f"{value:,.0f}", f"at most {limit:,}"),
                "Beyond the positions it was trained on a model repeats itself or writes noise.",
                f"write at most {limit}",
                limit=limit,
            )
