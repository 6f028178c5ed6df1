"""adapter_config.json's settings against the file, as PEFT takes them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateup.checks.finding import Finding
from gateup.checks.runner import check

Q = "base_model.model.model.layers.0.self_attn.q_proj"
TOKENS = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"
Found = Callable[..., list[Finding]]


@pytest.fixture
def found(tmp_path: Path, tiny: dict[str, Any], write_adapter: Callable[..., Path]) -> Found:
    """(rule, settings) -> what the rule says of an adapter on q_proj and gate_proj with them."""

    def of(rule_id: str, **settings: Any) -> list[Finding]:
        (tmp_path / "config.json").write_text(json.dumps(tiny))
        adapter = write_adapter(tmp_path / "a", tiny, **settings)
        report = check(tmp_path / "config.json", adapter=adapter)
        assert not report.failed
        return [f for f in report.findings if f.rule == rule_id]

    return of


@pytest.mark.parametrize(
    ("settings", "severity", "words"),
    [
        ({"rank_pattern": {"nope": 8}}, "warning", "1 of 1 key of rank_pattern mean no adapted"),
        ({"alpha_pattern": {"self_attn.gate_proj": 8}}, "warning", "alpha_pattern mean no adapted"),
        ({"rank_pattern": {"q_proj": 4, "v_proj": 8}}, "warning", "1 of 2 keys"),
        ({"rank_pattern": {"(q_proj": 4}}, "error", "no regular expression"),
    ],
)
def test_pattern_keys_that_mean_nothing(
    found: Found, settings: dict[str, Any], severity: str, words: str
) -> None:
    (f,) = found("adapter.patterns", **settings)
    assert f.severity == severity
    assert words in f.title


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rank_pattern": {"q_proj": 4}, "alpha_pattern": {"mlp.gate_proj": 4}},
        {"rank_pattern": {".*_proj": 4}},
        {"alpha_pattern": {r"layers\.[01]\.self_attn\.q_proj": 16}},
    ],
)
def test_pattern_keys_that_mean_modules(found: Found, settings: dict[str, Any]) -> None:
    assert found("adapter.patterns", **settings) == []


@pytest.mark.parametrize(
    ("settings", "wrong", "remedy"),
    [
        ({"r": 8}, 6, "Put r: 4 into"),
        ({"rank_pattern": {"q_proj": 8}}, 3, "Put 4 for q_proj into rank_pattern if"),
        ({"r": 8, "rank_pattern": {"q_proj": 4}}, 3, "Put r: 4 into"),
        ({"r": 8, "rank_pattern": {"q_proj": 16}}, 6, "Put 4 for q_proj into rank_pattern, and r"),
        ({"rank_pattern": {"mlp\\..*": 2}}, 3, "rank_pattern if"),
    ],
)
def test_a_rank_that_is_not_the_tensors(
    found: Found, settings: dict[str, Any], wrong: int, remedy: str
) -> None:
    (f,) = found("adapter.pairs", **settings)
    assert f.severity == "error"
    assert f.title.startswith(f"{wrong} adapted modules of another rank")
    assert "size mismatch" in f.cause
    assert remedy in f.remedy


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"r": 8, "rank_pattern": {".*_proj": 4}},
        {"r": 8, "rank_pattern": {"q_proj": 4, "gate_proj": 4}},
        {"rank_pattern": {"down_proj": 8}},  # of no module here
    ],
)
def test_ranks_that_are_the_tensors(found: Found, settings: dict[str, Any]) -> None:
    assert found("adapter.pairs", **settings) == []


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"alpha_pattern": {"q_proj": 0}}, "alpha_pattern, key q_proj"),
        ({"alpha_pattern": {"gate_proj": 400}}, "alpha_pattern, key gate_proj"),
        ({"lora_alpha": 400, "alpha_pattern": {"q_proj": 8}}, "lora_alpha"),
    ],
)
def test_a_scale_of_some_modules(found: Found, settings: dict[str, Any], field: str) -> None:
    (f,) = found("adapter.scale", **settings)
    assert f.evidence[0].subject == field


def test_a_scale_that_the_patterns_put_right(found: Found) -> None:
    healthy = {"lora_alpha": 400, "alpha_pattern": {".*_proj": 8}}
    assert found("adapter.scale", **healthy) == []


@pytest.mark.parametrize(
    ("settings", "subject"),
    [
        ({"target_modules": ".*_proj", "layers_to_transform": [0]}, "layers_to_transform"),
        ({"layers_pattern": "layers"}, "layers_pattern"),
        ({"bias": "sometimes"}, "bias"),
        ({"lora_dropout": 1.5}, "lora_dropout"),
        ({"exclude_modules": "(q"}, "exclude_modules"),
    ],
)
def test_settings_that_peft_refuses(found: Found, settings: dict[str, Any], subject: str) -> None:
    (f,) = found("adapter.settings", **settings)
    assert f.severity == "error"
    assert [e.subject for e in f.evidence] == [subject]


@pytest.mark.parametrize(
    ("settings", "severity"),
    [
        ({"layers_to_transform": [0, 1, 2, 31]}, "warning"),
        ({"exclude_modules": ["vision_tower"]}, "note"),
        ({"exclude_modules": r".*vision.*"}, "note"),
    ],
)
def test_settings_without_an_effect(found: Found, settings: dict[str, Any], severity: str) -> None:
    (f,) = found("adapter.settings", **settings)
    assert f.severity == severity


def test_settings_as_peft_writes_them(found: Found) -> None:
    settings = {
        "bias": "none",
        "lora_dropout": 0.05,
        "exclude_modules": None,
        "layers_pattern": None,
        "layers_to_transform": None,
        "lora_bias": False,
        "trainable_token_indices": None,
        "rank_pattern": {},
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    for name in ("settings", "biases", "tokens", "patterns", "outside", "missing"):
        assert found(f"adapter.{name}", **settings) == []


@pytest.mark.parametrize(
    ("settings", "severity", "words"),
    [
        ({"more": {f"{Q}.lora_B.bias": (64,)}}, "error", "1 bias tensor of lora_B in the file"),
        ({"lora_bias": True}, "warning", "the file has no bias of lora_B"),
        ({"bias": "all"}, "note", "the base has no biases"),
        ({"bias": "lora_only"}, "note", "the base has no biases"),
    ],
)
def test_biases(found: Found, settings: dict[str, Any], severity: str, words: str) -> None:
    (f,) = found("adapter.biases", **settings)
    assert f.severity == severity
    assert words in f.title


def test_a_bias_that_the_config_names_is_fine(found: Found) -> None:
    more = {f"{Q}.lora_B.bias": (64,)}
    assert found("adapter.biases", lora_bias=True, more=more) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"trainable_token_indices": [1, 2]}, "names 2 rows, and the file has none"),
        (
            {"trainable_token_indices": [1, 160], "more": {TOKENS: (2, 64)}},
            "1 row beyond the base's 160",
        ),
        ({"more": {TOKENS: (2, 64)}}, "trainable_token_indices is not set"),
        (
            {"trainable_token_indices": {"embed_tokens": [159, 400]}, "more": {TOKENS: (2, 64)}},
            "1 row beyond",
        ),
        (
            {"trainable_token_indices": [1, 2, 3], "more": {TOKENS: (2, 64)}},
            "names 3 rows, the file has 2",
        ),
    ],
)
def test_tokens(found: Found, settings: dict[str, Any], words: str) -> None:
    (f,) = found("adapter.tokens", **settings)
    assert f.severity == "error"
    assert words in f.title


def test_tokens_that_are_there(found: Found) -> None:
    more = {TOKENS: (2, 64)}
    assert found("adapter.tokens", trainable_token_indices=[1, 159], more=more) == []


# Adapters as PEFT makes and saves them; B's are filled as training would.
SAVED: dict[str, dict[str, Any]] = {
    "layers": {"layers_to_transform": [1], "layers_pattern": "layers"},
    "expression": {"target_modules": r".*\.layers\.[01]\.mlp\.(gate|up|down)_proj"},
    "excluded": {"target_modules": "all-linear", "exclude_modules": ["k_proj"]},
    "patterns": {
        "rank_pattern": {"q_proj": 8, r"mlp\.gate_proj": 2},
        "alpha_pattern": {"q_proj": 16},
    },
    "dora": {"use_dora": True},
    "whole": {"modules_to_save": ["lm_head", "embed_tokens", "layers.0.self_attn.q_proj"]},
    "tokens": {"trainable_token_indices": {"embed_tokens": [3, 159]}},
    "biases": {"lora_bias": True},
}


@pytest.mark.parametrize("name", SAVED)
def test_what_peft_saves_is_healthy(tmp_path: Path, tiny: dict[str, Any], name: str) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {k: v for k, v in tiny.items() if k not in ("architectures", "torch_dtype")}
    (tmp_path / "config.json").write_text(json.dumps(tiny))
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "gate_proj"]} | SAVED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(LlamaForCausalLM(LlamaConfig(**sizes)), LoraConfig(**settings))
        for key, value in adapted.named_parameters():
            if "lora_B" in key:
                value.data.fill_(0.01)
        adapted.save_pretrained(tmp_path / "a")
    report = check(tmp_path / "config.json", adapter=tmp_path / "a")
    assert not report.failed
    assert [f.title for f in report.findings if f.severity != "note"] == []
