"""Trainers' files as one kind of thing."""

from __future__ import annotations

from typing import Any

import pytest

from gateup.checks.trainer_files import dialect_of, read_run
from gateup.checks.trainer_keys import ELSEWHERE, KNOWN, LLAMAFACTORY


def read(**values: Any) -> Any:
    return read_run(values, "t.yaml")


@pytest.mark.parametrize(
    ("values", "dialect"),
    [
        ({"finetuning_type": "lora"}, "llamafactory"),
        ({"lora_rank": 8}, "llamafactory"),
        ({"peft_type": "LORA", "r": 8}, "peft"),
        ({"per_device_train_batch_size": 4}, "transformers"),
        ({"adapter": "qlora", "lora_r": 8, "sequence_len": 512}, "transformers"),
        ({}, "transformers"),
    ],
)
def test_dialects(values: dict[str, Any], dialect: str) -> None:
    assert dialect_of(values) == dialect


def test_llamafactory_with_its_defaults() -> None:
    run = read(finetuning_type="lora", cutoff_len=1024)
    assert (run.rank, run.alpha, run.targets) == (8, 16.0, "all-linear")
    assert (run.checkpointing, run.reentrant) == (True, True)
    assert read(lora_rank=64).alpha == 128
    assert read(lora_rank=64, lora_alpha=0).alpha == 128
    assert read(lora_rank=8, disable_gradient_checkpointing=True).checkpointing is False


def test_axolotls_names() -> None:
    run = read(
        adapter="qlora",
        lora_r=32,
        lora_alpha=16,
        lora_target_modules=["q_proj", "up_proj"],
        sequence_len=4096,
        micro_batch_size=2,
        load_in_4bit=True,
        gradient_checkpointing="unsloth",
    )
    assert (run.method, run.rank, run.cutoff, run.batch, run.bits) == ("lora", 32, 4096, 2, 4)
    assert run.targets == ("q_proj", "up_proj")
    assert run.checkpointing is True
    assert run.place("cutoff") == ("t.yaml", "sequence_len")


def test_methods() -> None:
    assert read(finetuning_type="full").method == "full"
    assert read(finetuning_type="freeze").method == "freeze"
    assert read(peft_type="LORA").method == "lora"
    assert read(learning_rate=1e-4).method is None
    assert read(learning_rate=1e-4, r=8).method == "lora"


@pytest.mark.parametrize(
    ("value", "targets"),
    [
        ("all", "all-linear"),
        ("q_proj, v_proj", ("q_proj", "v_proj")),
        ("q_proj", ("q_proj",)),
        (["up_proj", "down_proj"], ("up_proj", "down_proj")),
        (["all"], "all-linear"),
    ],
)
def test_lora_target(value: Any, targets: Any) -> None:
    assert read(lora_target=value).targets == targets


def test_pefts_one_string_stays_an_expression() -> None:
    assert read(peft_type="LORA", target_modules="q_proj").targets == "q_proj"
    assert read(peft_type="LORA", target_modules="all-linear").targets == "all-linear"


@pytest.mark.parametrize("text", ["1e-4", "1.0e-4", 1e-4])
def test_numbers_as_text(text: Any) -> None:
    run = read(learning_rate=text, lora_rank="16")
    assert (run.learning_rate, run.rank, run.odd) == (1e-4, 16, ())


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"lora_rank": 8.5}, "a whole number"),
        ({"lora_rank": True}, "a number"),
        ({"lora_rank": [8]}, "a number"),
        ({"lora_rank": 10**400}, "a number"),
        ({"learning_rate": "fast"}, "a number"),
        ({"learning_rate": float("nan")}, "a number"),
        ({"finetuning_type": "lorra"}, "lora, full, freeze or oft"),
        ({"finetuning_type": ["lora"]}, "lora, full, freeze or oft"),
        ({"lora_target": 3}, "names of modules"),
        ({"lora_target": [1]}, "names of modules"),
        ({"lora_target": " , "}, "1 to 200 names of modules"),
        ({"use_rslora": "maybe", "r": 3}, "true or false"),
    ],
)
def test_what_cannot_be_is_remembered_not_raised(values: dict[str, Any], expected: str) -> None:
    (odd,) = read(**values).odd
    assert (odd.expected, odd.source) == (expected, "t.yaml")


@pytest.mark.parametrize("value", [None, {}, [], "x", 1, float("inf"), {"a": []}, [[]]])
def test_any_value_under_any_key(value: Any) -> None:
    for key in sorted(LLAMAFACTORY | KNOWN["peft"] | set(ELSEWHERE)):
        read(**{key: value})


def test_the_known_keys_hold_the_installed_versions_own() -> None:
    import dataclasses

    from peft import LoraConfig
    from transformers import Seq2SeqTrainingArguments

    ours = {f.name for f in dataclasses.fields(Seq2SeqTrainingArguments)}
    assert ours <= LLAMAFACTORY
    assert {f.name for f in dataclasses.fields(LoraConfig)} <= KNOWN["peft"] | {"task_type"}


def test_no_name_of_elsewhere_is_known() -> None:
    assert not set(ELSEWHERE) & LLAMAFACTORY
    assert all(v.partition(":")[0] in LLAMAFACTORY for v in ELSEWHERE.values())
