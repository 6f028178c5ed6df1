"""Two checkpoints side by side: what may differ, what may not, and what is another model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateup.checks.context import Context
from gateup.checks.finding import Finding
from gateup.checks.runner import check
from gateup.checks.same_rules import same
from gateup.files.checkpoint import open_model
from gateup.model.presets import PRESETS

Described = Callable[..., Context]
LLAMA3 = PRESETS["llama-3.1-8b"].config["rope_scaling"]


def config(preset: str, **changes: Any) -> dict[str, Any]:
    return {**PRESETS[preset].config, **changes}


def compared(described: Described, mine: dict[str, Any], base: dict[str, Any]) -> list[Finding]:
    return same(replace(described(mine), base=described(base).checkpoint))


def test_metadata_against_the_original(described: Described, smollm2_gguf: Path) -> None:
    """The demo GGUF and SmolLM2-135M say the same; an original with other fields does not."""
    gguf = open_model(smollm2_gguf)
    base = described(config("smollm2-135m")).checkpoint
    assert same(Context(gguf, base=base)) == []
    other = described(config("smollm2-135m", rope_theta=10000.0, rms_norm_eps=1e-6)).checkpoint
    found = same(Context(gguf, base=other))
    assert [f.numbers["expected"] for f in found] == ["1e-06", "10000"]
    assert all(f.severity == "warning" for f in found)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        (
            {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
            ["rms_norm_eps", "max_position_embeddings"],
        ),
        ({"intermediate_size": 11000}, ["intermediate_size"]),
        ({"num_key_value_heads": 8}, ["num_key_value_heads"]),
        ({"hidden_act": "gelu"}, ["hidden_act"]),
        ({"vocab_size": 31000}, ["vocab_size"]),
        ({"tie_word_embeddings": True}, ["tie_word_embeddings"]),
    ],
)
def test_a_field_that_differs(
    described: Described, changes: dict[str, Any], fields: list[str]
) -> None:
    found = compared(described, config("llama-2-7b", **changes), config("llama-2-7b"))
    assert [f.title.split(" is ")[0] for f in found] == fields
    assert {f.severity for f in found} == {"warning"}


def test_what_a_fine_tune_may_change(described: Described) -> None:
    base = config("llama-2-7b")
    assert compared(described, base, base) == []
    assert compared(described, config("llama-2-7b", hidden_act="swish"), base) == []
    for change in ({"vocab_size": 32064}, {"torch_dtype": "bfloat16"}):
        [found] = compared(described, config("llama-2-7b", **change), base)
        assert found.severity == "note"
    new = config("llama-2-7b", rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    assert compared(described, new, base) == []


@pytest.mark.parametrize(
    ("mine", "base", "fields"),
    [
        ("llama-3-8b", "llama-2-13b", "hidden_size, num_hidden_layers"),
        ("mistral-7b", "llama-3-8b", "model_type"),
        ("qwen2.5-0.5b", "qwen2.5-7b", "hidden_size, num_hidden_layers"),
        ("mixtral-8x7b", "mistral-7b", "model_type"),
    ],
)
def test_another_model_is_an_error(described: Described, mine: str, base: str, fields: str) -> None:
    [found] = compared(described, config(mine), config(base))
    assert found.severity == "error"
    assert f"are two models: {fields}" in found.title
    assert found.numbers["fields"] == len(found.evidence) + found.more


def test_a_gguf_calls_several_families_llama(described: Described, smollm2_gguf: Path) -> None:
    base = described(config("smollm2-135m", model_type="mistral")).checkpoint
    assert same(Context(open_model(smollm2_gguf), base=base)) == []
    report = check("smollm2", base="llama-3-8b")
    assert report.exit_code == 1


@pytest.mark.parametrize(
    ("scaling", "fields"),
    [
        (None, "rope_type, factor, low_freq_factor, high_freq_factor, original_max"),
        ({**LLAMA3, "factor": 32.0}, "factor"),
        ({"rope_type": "linear", "factor": 8.0}, "rope_type, low_freq_factor"),
        ({**LLAMA3, "original_max_position_embeddings": 4096}, "original_max_position_embeddings"),
    ],
)
def test_scaling_that_differs(described: Described, scaling: Any, fields: str) -> None:
    base = config("llama-3.1-8b")
    [found] = compared(described, config("llama-3.1-8b", rope_scaling=scaling), base)
    assert found.severity == "warning"
    listed = found.title.partition(": ")[2]
    assert set(fields.split(", ")) <= set(listed.split(", ")) or listed.startswith(fields)
    [back] = compared(described, base, config("llama-3.1-8b", rope_scaling=scaling))
    assert back.title.startswith("rope_scaling differs")


def test_scaling_spelt_otherwise_is_the_same(described: Described) -> None:
    spelt = {**{k: v for k, v in LLAMA3.items() if k != "rope_type"}, "type": "llama3"}
    base = config("llama-3.1-8b")
    assert compared(described, config("llama-3.1-8b", rope_scaling=spelt), base) == []
    moved = config("llama-3.1-8b", rope_parameters={**LLAMA3, "rope_theta": 500000.0})
    del moved["rope_scaling"], moved["rope_theta"]
    assert compared(described, moved, base) == []
    phi = config("phi-3.5-mini")
    factors = [f * 1.5 for f in phi["rope_scaling"]["long_factor"]]
    other = {**phi, "rope_scaling": {**phi["rope_scaling"], "long_factor": factors}}
    [found] = compared(described, other, phi)
    assert found.title.endswith("long_factor")
    assert compared(described, phi, phi) == []


def test_a_gguf_that_lost_its_scaling(described: Described, smollm2_gguf: Path) -> None:
    gguf = open_model(smollm2_gguf)
    for scaling, words in (
        (LLAMA3, "rope_freqs.weight is not in the file"),
        ({"rope_type": "linear", "factor": 4.0}, "has linear, factor 4"),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
            "has yarn, factor 4",
        ),
    ):
        base = described(config("smollm2-135m", rope_scaling=scaling)).checkpoint
        [found] = same(Context(gguf, base=base))
        assert words in found.title
        assert found.rule == "semantics.same"
