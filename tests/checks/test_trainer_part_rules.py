"""Modules that a run trains whole, and the quantisation it asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateup.checks.context import Context
from gateup.checks.finding import Finding
from gateup.checks.trainer_part_rules import freeze, quantised, whole

FREEZE = {"finetuning_type": "freeze", "freeze_trainable_layers": 2}
LORA = {"finetuning_type": "lora", "lora_rank": 8}
Asked = Callable[..., list[Finding]]


@pytest.fixture
def asked(described: Callable[..., Context], tiny: dict[str, Any]) -> Asked:
    """(rule, settings, quantisation of the model) -> what it says."""

    def of(rule: Any, values: dict[str, Any], held: str | None = None) -> list[Finding]:
        config = tiny if held is None else tiny | {"quantization_config": {"quant_method": held}}
        return list(rule(described(config, trainer=values)))

    return of


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"freeze_trainable_modules": "gate_proj"}, "gate_proj"),
        ({"freeze_trainable_modules": "mlp,attn"}, "attn"),
        ({"freeze_trainable_modules": ["self_attn", "q_proj"]}, "q_proj"),
        ({"freeze_extra_modules": "embed"}, "embed"),
        ({"freeze_extra_modules": "mlp"}, "mlp"),
        ({"freeze_trainable_layers": 0}, "0"),
    ],
)
def test_freeze_names_that_are_not_there(asked: Asked, change: dict[str, Any], found: str) -> None:
    (f,) = asked(freeze, FREEZE | change)
    assert f.severity == "error"
    assert [e.found for e in f.evidence] == [found]
    if "freeze_trainable_modules" in change:
        assert "self_attn, mlp" in f.remedy or "mlp, " in f.remedy


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"freeze_trainable_modules": "all"},
        {"freeze_trainable_modules": "mlp,self_attn", "freeze_extra_modules": "embed_tokens,norm"},
        {"freeze_trainable_layers": -1},
        {"finetuning_type": "lora", "freeze_trainable_modules": "gate_proj"},  # not looked at
        {"freeze_trainable_modules": "${MODULES}"},
        {"freeze_trainable_modules": 7},
    ],
)
def test_freeze_as_it_should_be(asked: Asked, change: dict[str, Any]) -> None:
    assert asked(freeze, FREEZE | change) == []


@pytest.mark.parametrize(
    ("values", "idle", "near"),
    [
        (LORA | {"additional_target": "embed_token_,lm_head"}, 1, "embed_tokens"),
        (LORA | {"additional_target": "wte,lm_head"}, 1, "a module's name"),
        ({"r": 8, "target_modules": ["q_proj"], "modules_to_save": ["lm_heads"]}, 1, "lm_head"),
        ({"base_model": "x", "adapter": "lora", "lora_modules_to_save": ["a", "b"]}, 2, ""),
    ],
)
def test_whole_modules_that_are_not_there(
    asked: Asked, values: dict[str, Any], idle: int, near: str
) -> None:
    (f,) = asked(whole, values)
    assert f.severity == "warning"
    assert f.numbers["idle"] == idle
    assert near in f.evidence[0].expected


@pytest.mark.parametrize(
    "values",
    [
        LORA,
        LORA | {"additional_target": "embed_tokens,lm_head"},
        LORA | {"additional_target": ["norm", "layers.0.mlp"]},
        {"r": 8, "modules_to_save": None},
        {"finetuning_type": "full", "additional_target": "nothing"},
    ],
)
def test_whole_modules_that_are_there(asked: Asked, values: dict[str, Any]) -> None:
    assert asked(whole, values) == []


@pytest.mark.parametrize(
    ("change", "held", "severity", "words"),
    [
        ({"quantization_bit": 5}, None, "error", "is 5; bnb takes 4, 8"),
        ({"quantization_bit": 3, "quantization_method": "bnb"}, None, "error", "takes 4, 8"),
        ({"quantization_bit": 4, "quantization_method": "eetq"}, None, "error", "eetq takes 8"),
        ({"quantization_bit": 7, "quantization_method": "hqq"}, None, "error", "hqq takes 1"),
        ({"quantization_bit": 4}, "awq", "warning", "quantised with 'awq' already"),
        ({"load_in_4bit": True}, "gptq", "warning", "load_in_4bit 4, and the model"),
        ({"finetuning_type": "full"}, "awq", "error", "full training of weights"),
    ],
)
def test_quantisation_that_is_none(
    asked: Asked, change: dict[str, Any], held: str | None, severity: str, words: str
) -> None:
    (f,) = asked(quantised, LORA | change, held)
    assert f.severity == severity
    assert words in f.title


@pytest.mark.parametrize(
    ("change", "held"),
    [
        ({}, None),
        ({"quantization_bit": 4}, None),
        ({"quantization_bit": 8, "quantization_method": "bnb"}, None),
        ({"quantization_bit": 3, "quantization_method": "hqq"}, None),
        ({}, "awq"),
        ({"quantization_bit": 2, "quantization_method": "of_tomorrow"}, None),
    ],
)
def test_quantisation_there_is(asked: Asked, change: dict[str, Any], held: str | None) -> None:
    assert asked(quantised, LORA | change, held) == []
