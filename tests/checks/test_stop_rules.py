"""Tokens that end and pad a text: whether they exist, and whether generation waits for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateup.checks import stop_rules
from gateup.checks.context import Context
from gateup.checks.finding import Finding
from gateup.checks.rule import rules_of
from gateup.checks.stop_rules import CLASS_DEFAULTS
from gateup.checks.tokenizer_files import TokenizerInfo
from gateup.model.presets import PRESETS

RULES = {r.id: r for r in rules_of([stop_rules])}
Described = Callable[..., Context]

LLAMA3_IDS = {"<|end_of_text|>": 128001, "<|eot_id|>": 128009}
QWEN_IDS = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def tokenizer(added: dict[str, int], eos: str, template: str | None = None) -> TokenizerInfo:
    return TokenizerInfo(
        path=Path("model"),
        size=max(added.values()) + 1,
        highest=max(added.values()),
        added=added,
        special={"eos_token": eos},
        ids={"eos_token": added[eos]},
        config={"chat_template": template} if template else {},
    )


def run(
    described: Described,
    preset: str = "llama-3-8b",
    *,
    generation: dict[str, Any] | None = None,
    tokens: TokenizerInfo | None = None,
    file: str = "generation_config.json",
    **changes: Any,
) -> list[Finding]:
    context = described(
        {**PRESETS[preset].config, **changes},
        generation=generation,
        tokenizer=tokens,
        sources={"generation": file},
    )
    return [f for rule in RULES.values() for f in rule(context)]


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_known_models_are_sound(described: Described, preset: str) -> None:
    assert run(described, preset) == []


def test_published_tokens_are_sound(described: Described) -> None:
    llama = tokenizer(LLAMA3_IDS, "<|eot_id|>")
    both = {"bos_token_id": 128000, "eos_token_id": [128001, 128009]}
    assert run(described, generation=both, tokens=llama, eos_token_id=128009) == []
    qwen = tokenizer(QWEN_IDS, "<|im_end|>", CHATML)
    chat = {"pad_token_id": 151643, "eos_token_id": [151645, 151643]}
    assert run(described, "qwen2.5-7b", generation=chat, tokens=qwen) == []


def test_an_end_that_generation_does_not_wait_for(described: Described) -> None:
    llama = tokenizer(LLAMA3_IDS, "<|eot_id|>")
    (found,) = run(described, generation={"eos_token_id": 128001}, tokens=llama)
    assert (found.rule, found.severity) == ("generation.stop", "warning")
    assert "<|eot_id|> (128009)" in found.title
    assert found.remedy == "write eos_token_id: [128001, 128009]"


@pytest.mark.parametrize("eos", [2, [151643]])
def test_more_ends_that_differ(described: Described, eos: Any) -> None:
    qwen = tokenizer(QWEN_IDS, "<|im_end|>")
    (found,) = run(described, "qwen2.5-7b", generation={"eos_token_id": eos}, tokens=qwen)
    assert "<|im_end|> (151645)" in found.title
    assert run(described, "qwen2.5-7b", eos_token_id=eos, tokens=qwen)[0].rule == "generation.stop"


def test_a_base_model_with_a_chat_template_is_a_note(described: Described) -> None:
    base = tokenizer(QWEN_IDS, "<|endoftext|>", CHATML)
    (found,) = run(described, "qwen2.5-7b", generation={"eos_token_id": 151643}, tokens=base)
    assert found.severity == "note"
    assert "<|im_end|>" in found.title
    plain = tokenizer(QWEN_IDS, "<|endoftext|>")
    assert run(described, "qwen2.5-7b", generation={"eos_token_id": 151643}, tokens=plain) == []


def test_no_end_at_all(described: Described) -> None:
    llama = tokenizer(LLAMA3_IDS, "<|eot_id|>")
    (found,) = run(described, tokens=llama)
    assert found.title.startswith("no eos_token_id is set")
    assert found.remedy == "write eos_token_id: 128009"
    assert run(described, tokens=llama, eos_token_id=128009) == []


def test_generation_config_without_an_end(described: Described) -> None:
    """transformers does not look at config.json where generation_config.json exists."""
    (found,) = run(described, generation={"temperature": 0.6}, eos_token_id=128009)
    assert found.severity == "warning"
    assert found.remedy == "write eos_token_id: 128009"
    # Sampling settings given in a file of their own say nothing of it.
    settings = {"temperature": 0.6}
    assert run(described, generation=settings, eos_token_id=128009, file="mine.json") == []


def test_an_end_that_is_ignored(described: Described) -> None:
    (found,) = run(described, generation={"ignore_eos": True, "eos_token_id": 128009})
    assert "ignore_eos" in found.title


@pytest.mark.parametrize(
    ("key", "value", "severity"),
    [
        ("pad_token_id", 128256, "error"),
        ("eos_token_id", 128256, "error"),
        ("eos_token_id", [128001, 200000], "warning"),
        ("bos_token_id", 151643, "error"),
        ("pad_token_id", -1, "note"),
        ("eos_token_id", -1, "error"),
        ("eos_token_id", "<|eot_id|>", "error"),
        ("eos_token_id", [True], "error"),
    ],
)
def test_tokens_outside_the_vocabulary(
    described: Described, key: str, value: Any, severity: str
) -> None:
    for found in (
        run(described, **{key: value}),
        run(described, generation={"eos_token_id": 128001, key: value}),
    ):
        outside = [f for f in found if f.rule == "generation.tokens"]
        assert [f.severity for f in outside] == [severity]
        assert outside[0].evidence[0].subject == key


def test_the_last_id_is_one_less_than_the_size(described: Described) -> None:
    assert run(described, eos_token_id=128255) == []
    (found,) = run(described, "llama-2-7b", pad_token_id=32000)
    assert found.title == "pad_token_id 32000 is outside the vocabulary of 32,000"
    assert found.evidence[0].expected == "0 to 31,999"
    assert run(described, "llama-2-7b", pad_token_id=32000, vocab_size=32001) == []


def test_default_ids_are_those_of_the_classes() -> None:
    from transformers import CONFIG_MAPPING

    for family in ("llama", "qwen3", "gemma", "mixtral", "gpt_oss", "deepseek_v3", *CLASS_DEFAULTS):
        theirs = CONFIG_MAPPING[family]()
        ids = {getattr(theirs, f"{k}_token_id", None) for k in ("bos", "eos", "pad")}
        assert {i for i in ids if i and i > 2} == CLASS_DEFAULTS.get(family, frozenset())


@pytest.mark.parametrize(
    ("preset", "key", "number"),
    [
        ("llama-3-8b", "eos_token_id", 128009),
        ("phi-3-mini", "pad_token_id", 32007),
        ("qwen2.5-7b", "bos_token_id", 151643),
        ("gpt2", "eos_token_id", 1000),
    ],
)
def test_an_id_that_someone_typed_is_no_default(
    described: Described, preset: str, key: str, number: int
) -> None:
    """However small the vocabulary."""
    others = dict.fromkeys(("eos_token_id", "pad_token_id", "bos_token_id"), 0)
    found = run(described, preset, vocab_size=64, **{**others, key: number})
    assert [f.severity for f in found if f.rule == "generation.tokens"] == ["error"]
    assert "default" not in found[0].cause


def test_vocabularies_of_tests_keep_default_ids(described: Described) -> None:
    (found,) = run(described, "phi-3-mini", vocab_size=64, eos_token_id=32000)
    assert found.severity == "note"
