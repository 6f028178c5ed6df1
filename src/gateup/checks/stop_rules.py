"""Special tokens of generation: what ends a text, what pads it, and whether they exist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding, Severity
from gateup.checks.generation_rules import is_transformers_file
from gateup.checks.rule import rule

KEYS = ("eos_token_id", "pad_token_id", "bos_token_id")
# Vocabularies below this are those of tests.
REAL_VOCAB = 1024
# What classes write into the config of a model of any size, where nothing is said
# [source: transformers 5.24]. Others have none beyond id 2.
CLASS_DEFAULTS: Mapping[str, frozenset[int]] = {
    "gpt2": frozenset({50256}),
    "olmo2": frozenset({50279}),
    "olmoe": frozenset({50279}),
    "phi3": frozenset({32000}),
    "smollm3": frozenset({128000, 128001, 128004}),
}
# Texts that end a turn in common chat templates.
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|return|>")


def _parts(context: Context) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(source, mapping) of what may name special tokens."""
    yield context.source("config"), context.spec.config
    if context.generation is not None:
        yield context.source("generation"), context.generation


def _ids(value: Any) -> list[int] | None:
    """eos_token_id may be one id or a list; None where it is neither."""
    entries = value if isinstance(value, list) else [value]
    return entries if all(type(e) is int for e in entries) else None


def _eos(values: Mapping[str, Any]) -> list[int]:
    return (_ids(values["eos_token_id"]) or []) if values.get("eos_token_id") is not None else []


@rule("generation.tokens", "Special tokens are ids that the vocabulary has")
def tokens(context: Context) -> Iterable[Finding]:
    """eos, pad and bos ids must be rows of the embedding: at least 0 and less than vocab_size. An
    eos that no logit stands for is never produced, so text never ends; a pad beyond the table is
    an index error as soon as a batch is padded.

        Llama-2 fine-tune, pad_token_id 32000, vocab_size 32000: the last id is 31,999
        pad_token_id -1: "none" in old files; padding needs a real one

    And why do I see '!!!!!!'? That is token 0 of Qwen's, Llama 3's and GPT-2's vocabularies, and
    argmax of logits that are all NaN: an overflow in float16, not a wrong id. See
    semantics.dtype.
    """
    vocab = context.spec.vocab_size
    for source, values in _parts(context):
        for key in KEYS:
            if values.get(key) is None:
                continue
            ids = _ids(values[key])
            where = f"{source}, field {key}"
            if ids is None:
                yield Finding(
                    "generation.tokens",
                    "error",
                    f"{key} is {values[key]!r:.40}",
                    (Evidence(key, repr(values[key])[:60], "an id, or a list of ids", where),),
                    "Token ids are whole numbers; a token's text is not looked up.",
                    "write the token's number, as tokenizer.json has it",
                )
                continue
            wrong = [i for i in ids if not 0 <= i < vocab]
            if wrong:
                yield _outside(context, key, ids, wrong, where)


def _outside(context: Context, key: str, ids: list[int], wrong: list[int], where: str) -> Finding:
    vocab = context.spec.vocab_size
    shown = ", ".join(map(str, wrong[:6]))
    severity: Severity = "error" if key != "eos_token_id" or len(wrong) == len(ids) else "warning"
    cause = {
        "eos_token_id": "No logit stands for such an id, so it is never produced: text never ends.",
        "pad_token_id": "Padding a batch with it reads beyond the embedding.",
        "bos_token_id": "A prompt that begins with it reads beyond the embedding.",
    }[key]
    if key == "pad_token_id" and all(i < 0 for i in wrong):
        severity, cause = "note", "A negative id means none in old files; padding needs a real one."
    if vocab < REAL_VOCAB and set(wrong) <= CLASS_DEFAULTS.get(context.spec.family, frozenset()):
        severity = "note"
        cause += f" A vocabulary of {vocab} is a test's: its class's default id was left in."
    return Finding(
        "generation.tokens",
        severity,
        f"{key} {shown} {'is' if len(wrong) == 1 else 'are'} outside the vocabulary of {vocab:,}",
        (Evidence(key, shown, f"0 to {vocab - 1:,}", where),),
        cause,
        "write the tokenizer's own id, or pad with eos_token_id where there is no pad token"
        if key == "pad_token_id"
        else "write the tokenizer's own id",
        {"vocab_size": vocab, "id": wrong[0]},
    )


@rule("generation.stop", "Something ends the text", worst="warning")
def stop(context: Context) -> Iterable[Finding]:
    """Why does it never stop? The model ends a text with the token it was trained to end with; the
    engine stops when it sees an id of eos_token_id. Where the two differ, the text runs on to
    max_new_tokens, usually through further turns of a made-up dialogue.

        Llama-3-8B-Instruct ends turns with <|eot_id|> (128009)
        eos_token_id 128001 alone: runs on; [128001, 128009]: stops

    transformers reads eos_token_id from generation_config.json alone where that file exists: one
    without it does not stop, whatever config.json says. A base model with a chat template may
    end texts with another token than the template's turns: then nothing is wrong.
    """
    generation, config = context.generation, context.spec.config
    if generation is not None and generation.get("ignore_eos") is True:
        yield _stop(
            "warning",
            "ignore_eos is true: only the token limit ends the text",
            ("ignore_eos", "true", "false", f"{context.source('generation')}, field ignore_eos"),
            "It is meant for benchmarks.",
            "remove it",
        )
    eos = _eos(generation or {}) or ([] if _file_alone(context) else _eos(config))
    if eos:
        yield from _against_tokenizer(context, eos)
        return
    elsewhere = _eos(config)
    tokenizer = context.tokenizer.ids.get("eos_token") if context.tokenizer else None
    if not elsewhere and tokenizer is not None:
        elsewhere = [tokenizer]
    if elsewhere and (_file_alone(context) or not _eos(config)):
        source = context.source("config") if _eos(config) else context.source("tokenizer")
        yield _stop(
            "warning",
            "no eos_token_id is set: nothing but the token limit ends the text",
            ("eos_token_id", "absent", ", ".join(map(str, elsewhere)), source),
            "transformers takes it from generation_config.json where that file exists, and from"
            " config.json otherwise; the tokenizer's is not looked at.",
            f"write eos_token_id: {elsewhere[0]}",
        )


def _stop(
    severity: Severity, title: str, evidence: tuple[str, str, str, str], cause: str, remedy: str
) -> Finding:
    return Finding("generation.stop", severity, title, (Evidence(*evidence),), cause, remedy)


def _file_alone(context: Context) -> bool:
    """Whether a generation_config.json is there: transformers reads it instead of config.json."""
    return context.generation is not None and is_transformers_file(context)


def _against_tokenizer(context: Context, eos: list[int]) -> Iterable[Finding]:
    tokenizer = context.tokenizer
    if tokenizer is None:
        return
    own, text = tokenizer.ids.get("eos_token"), tokenizer.special.get("eos_token", "")
    source = context.source("tokenizer")
    listed = ", ".join(map(str, eos[:8]))
    if own is not None and own not in eos:
        yield _stop(
            "warning",
            f"the tokenizer ends texts with {text[:40]} ({own}), which is not among eos_token_id"
            f" {listed}",
            ("eos_token_id", listed, str(own), f"{source}, eos_token"),
            "Training ended each text with the tokenizer's token; an engine that waits for another"
            " runs on to the token limit.",
            f"write eos_token_id: [{listed}, {own}]",
        )
    if context.chat_template is None:
        return
    template, place = context.chat_template
    for end in TURN_ENDS:
        number = tokenizer.added.get(end)
        if end in template and number is not None and number not in eos and number != own:
            yield _stop(
                "note",
                f"the chat template ends turns with {end} ({number}), which stops nothing",
                (
                    "eos_token_id",
                    listed,
                    f"{listed}, {number} for a chat model",
                    place,
                ),
                "A chat model goes on into the next turn by itself. A base model that carries the"
                " template of its chat sibling is right as it is.",
                f"for a chat model write eos_token_id: [{listed}, {number}]",
            )
