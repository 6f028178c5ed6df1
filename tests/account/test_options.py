"""Options: one table, values checked where they are given, none without effect."""

from __future__ import annotations

from dataclasses import fields

import pytest

from gateup.account.options import MAX_RANKS, PlanOptions
from gateup.account.workload import LoRA, Parallel, Training
from gateup.errors import UsageError


def test_every_field_is_an_option_with_help() -> None:
    flags: list[str] = []
    for f in fields(PlanOptions):
        assert f.metadata["help"].endswith("."), f.name
        flags += f.metadata["flags"]
    assert all(flag.startswith("--") for flag in flags)
    assert len(flags) == len(set(flags))


def test_defaults_leave_the_choice_open() -> None:
    options = PlanOptions()
    assert options.training() is None
    assert options.parallel() == Parallel()
    assert options.ctx is None
    assert options.engine is None


def test_training_takes_its_own_defaults() -> None:
    assert PlanOptions(train="lora").training() == Training(method="lora", lora=LoRA())
    full = PlanOptions(train="full", save="gate_up", checkpointing="layer").training()
    assert full == Training(method="full", save="gate_up", checkpointing="layer")


def test_targets_are_split_at_commas() -> None:
    training = PlanOptions(train="qlora", rank=4, alpha=8.0, targets="q_proj, v_proj").training()
    assert training is not None
    assert training.lora == LoRA(rank=4, alpha=8.0, targets=("q_proj", "v_proj"))


@pytest.mark.parametrize("name", ["rank", "alpha", "targets", "optimizer", "save", "checkpointing"])
def test_training_options_without_training(name: str) -> None:
    value: object = {"rank": 4, "alpha": 1.0}.get(name, "none")
    if name in ("optimizer", "save"):
        value = {"optimizer": "sgd", "save": "all"}[name]
    with pytest.raises(UsageError, match=f"--{name} is about training") as caught:
        PlanOptions(**{name: value})
    assert "add --train" in str(caught.value)


@pytest.mark.parametrize("name", ["tp", "pp", "ep", "fsdp"])
@pytest.mark.parametrize("value", [0, -1, MAX_RANKS + 1])
def test_ranks_have_bounds(name: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"--{name} is {value}"):
        PlanOptions(**{name: value}).parallel()


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_alpha_is_a_number_above_0(alpha: float) -> None:
    with pytest.raises(UsageError, match="a finite number above 0"):
        PlanOptions(train="lora", alpha=alpha)


def test_a_near_miss_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        PlanOptions(engine="vLLM")
    assert str(caught.value).splitlines() == [
        "--engine is 'vLLM'",
        "  expected: one of transformers, llama.cpp, vllm, gateup",
        "  remedy: did you mean vllm?",
    ]
