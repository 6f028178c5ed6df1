"""Generation settings: why output is always the same, repeats, or breaks off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from transformers import GenerationConfig

from gateup.checks import generation_rules
from gateup.checks.context import Context
from gateup.checks.finding import Finding
from gateup.checks.rule import rules_of
from gateup.model.presets import PRESETS

RULES = {r.id: r for r in rules_of([generation_rules])}
Described = Callable[..., Context]

# As published beside well-known models.
HEALTHY = {
    "llama-2-7b": {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_length": 4096},
    "llama-3-8b": {"do_sample": True, "temperature": 0.6, "top_p": 0.9},
    "qwen2.5-7b": {
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
        "repetition_penalty": 1.05,
    },
    "qwen3-8b": {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20},
    "gemma-2-9b": {"cache_implementation": "hybrid", "eos_token_id": 1},
    "mistral-7b": {"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2},
    "smollm2-135m": {"temp": 0.8, "top_k": 40, "top_p": 0.95, "repeat_penalty": 1.1},
}


def run(
    described: Described,
    settings: dict[str, Any],
    *,
    preset: str = "llama-2-7b",
    file: str = "generation_config.json",
) -> list[Finding]:
    context = described(
        dict(PRESETS[preset].config), generation=settings, sources={"generation": file}
    )
    return [f for rule in RULES.values() for f in rule(context)]


@pytest.mark.parametrize("preset", sorted(HEALTHY))
@pytest.mark.parametrize("file", ["generation_config.json", "settings.json"])
def test_published_settings_are_sound(described: Described, preset: str, file: str) -> None:
    settings: dict[str, Any] = {**HEALTHY[preset], "transformers_version": "4.51.0"}
    if "temp" in settings:  # llama.cpp's
        del settings["transformers_version"]
        file = "settings.json"
    assert run(described, settings, preset=preset, file=file) == []


def test_what_transformers_saves_by_itself_is_sound(described: Described) -> None:
    assert run(described, GenerationConfig(eos_token_id=2, bos_token_id=1).to_dict()) == []


def test_a_nucleus_of_one_token(described: Described) -> None:
    """The same text for every seed, with llama.cpp's names for the settings."""
    settings = {"temp": 0.7, "top_k": 40, "top_p": 0.1, "repeat_penalty": 1.25}
    (found,) = run(described, settings, file="settings.json")
    assert found.rule == "generation.narrow"
    assert found.severity == "warning"
    assert "seeds cannot matter" in found.title
    assert "best token of 10% or more" in found.cause
    assert "not the model or the seed" in found.cause
    assert found.remedy == "raise top_p to 0.9"
    assert found.evidence[0].subject == "top_p"


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"do_sample": True, "top_p": 0.001}, "top_p 0.001"),
        ({"do_sample": True, "top_p": 0.0, "temperature": 0.8}, "top_p 0"),
        ({"do_sample": True, "top_k": 1}, "top_k 1"),
        ({"do_sample": True, "temperature": 0.01}, "temperature 0.01"),
        ({"do_sample": True, "min_p": 0.9}, "min_p 0.9"),
        ({"do_sample": True, "temperature": 5.0}, "temperature 5"),
    ],
)
def test_more_that_leave_no_choice(
    described: Described, settings: dict[str, Any], what: str
) -> None:
    (found,) = run(described, settings)
    assert found.rule == "generation.narrow"
    assert found.title.startswith(what)


def test_a_nucleus_with_choice(described: Described) -> None:
    for top_p in (0.4, 0.8, 0.95, 1.0):
        settings = {"temp": 0.7, "top_k": 40, "top_p": top_p, "repeat_penalty": 1.25}
        assert run(described, settings, file="settings.json") == []


@pytest.mark.parametrize("explicit", [True, False])
def test_sampling_settings_without_sampling(described: Described, explicit: bool) -> None:
    settings = {"temperature": 0.7, "top_p": 0.9, "seed": 1}
    if explicit:
        settings["do_sample"] = False
    (found,) = run(described, settings)
    assert found.rule == "generation.greedy"
    assert found.severity == "warning"
    assert found.title.startswith("temperature, top_p, seed are ignored: do_sample")
    assert found.remedy == "set do_sample to true"


def test_settings_of_other_engines_sample(described: Described) -> None:
    """Without do_sample only transformers' own file is greedy."""
    settings = {"temperature": 0.7, "top_p": 0.9}
    assert run(described, settings, file="settings.json") == []
    assert len(run(described, settings, file="C:\\m\\generation_config.json")) == 1
    assert len(run(described, {**settings, "transformers_version": "5.0"}, file="x.json")) == 1


def test_temperature_0(described: Described) -> None:
    (found,) = run(described, {"temperature": 0, "do_sample": True})
    assert found.severity == "error"
    assert found.title == "do_sample is true and temperature is 0"
    (found,) = run(described, {"temperature": 0, "top_p": 0.9}, file="settings.json")
    assert found.title == "top_p is ignored: temperature 0"
    (found,) = run(described, {"temp": 0}, file="settings.json")
    assert found.severity == "note"


def test_greedy_by_choice_is_a_note(described: Described) -> None:
    (found,) = run(described, {"do_sample": False})
    assert (found.rule, found.severity) == ("generation.greedy", "note")
    assert "same text every time" in found.title


@pytest.mark.parametrize("settings", [{"do_sample": False}, {"temperature": 0}])
def test_models_that_loop_when_greedy(described: Described, settings: dict[str, Any]) -> None:
    found = run(described, settings, preset="qwen3-8b")
    assert [f.title for f in found if f.severity == "warning"] == [
        "greedy decoding makes qwen3 repeat itself"
    ]


@pytest.mark.parametrize(
    ("value", "severity"), [(0, "error"), (-1, "error"), (0.8, "warning"), (2.5, "warning")]
)
def test_penalties_out_of_reason(described: Described, value: float, severity: str) -> None:
    for name in ("repetition_penalty", "repeat_penalty"):
        (found,) = run(described, {"do_sample": True, name: value})
        assert (found.rule, found.severity) == ("generation.penalty", severity)
        assert found.title == f"{name} is {value:g}"


@pytest.mark.parametrize("value", [1, 1.05, 1.25, 2])
def test_penalties_within_reason(described: Described, value: float) -> None:
    assert run(described, {"do_sample": True, "repetition_penalty": value}) == []


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_penalties_of_the_openai_api(described: Described, name: str) -> None:
    assert run(described, {"do_sample": True, name: 1.5}) == []
    (found,) = run(described, {"do_sample": True, name: 3})
    assert found.severity == "warning"


@pytest.mark.parametrize(("size", "what"), [(1, "any token"), (2, "any 2 tokens in a row")])
def test_forbidden_repetition(described: Described, size: int, what: str) -> None:
    (found,) = run(described, {"no_repeat_ngram_size": size})
    assert found.title == f"no_repeat_ngram_size {size} forbids {what} to occur twice"
    assert run(described, {"no_repeat_ngram_size": 0}) == []
    assert run(described, {"no_repeat_ngram_size": 6}) == []


@pytest.mark.parametrize(
    ("settings", "severity", "what"),
    [
        ({"max_new_tokens": 4}, "warning", "max_new_tokens 4 ends every answer"),
        ({"n_predict": 1}, "warning", "n_predict 1 ends every answer"),
        ({"max_length": 20}, "warning", "max_length 20 counts the prompt"),
        (
            {"max_new_tokens": 9000},
            "warning",
            "max_new_tokens 9,000 is more than the model's 4,096",
        ),
        ({"max_new_tokens": 50, "min_new_tokens": 60}, "error", "min_new_tokens 60 is more than"),
    ],
)
def test_no_room_for_an_answer(
    described: Described, settings: dict[str, Any], severity: str, what: str
) -> None:
    (found,) = run(described, settings)
    assert (found.rule, found.severity) == ("generation.length", severity)
    assert found.title.startswith(what)


@pytest.mark.parametrize(
    "settings", [{"max_new_tokens": 512}, {"n_predict": -1}, {"max_length": 4096}]
)
def test_room_for_an_answer(described: Described, settings: dict[str, Any]) -> None:
    assert run(described, settings) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "0.7"),
        ("temperature", -0.5),
        ("top_p", 90),
        ("top_p", True),
        ("top_k", [40]),
        ("max_new_tokens", 0),
        ("repetition_penalty", {}),
        ("min_p", 10**400),
    ],
)
def test_values_that_are_no_setting(described: Described, name: str, value: Any) -> None:
    found = [f for f in run(described, {"do_sample": True, name: value}) if f.severity == "error"]
    assert [f.rule for f in found] == ["generation.values"]
    assert found[0].evidence[0].subject == name


def test_many_sequences_without_sampling(described: Described) -> None:
    (found,) = run(described, {"num_return_sequences": 4})
    assert (found.rule, found.severity) == ("generation.values", "error")
    assert run(described, {"num_return_sequences": 4, "num_beams": 4}) == []
    assert run(described, {"num_return_sequences": 4, "do_sample": True}) == []


def test_transformers_refuses_what_is_called_an_error() -> None:
    """The errors that this module names are those of the library it speaks of."""
    with pytest.raises(ValueError, match="num_return_sequences"):
        GenerationConfig(num_return_sequences=4)
    with pytest.raises(ValueError, match="max_new_tokens"):
        GenerationConfig(max_new_tokens=0)
