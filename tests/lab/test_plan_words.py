"""What the plan's report calls things, in Chinese: over runs of every kind."""

from __future__ import annotations

from typing import Any

import pytest

from gateup.account.memory import INFERENCE, LLAMACPP
from gateup.account.options import PlanOptions
from gateup.account.plan import plan
from gateup.account.training import PHASES
from gateup.lab.plan_words import plan_words

RUNS: list[dict[str, Any]] = [
    {"engine": "llama.cpp", "quant": "q4_k_m"},
    {"engine": "vllm"},
    {"engine": "transformers"},
    {"engine": "gateup", "quant": "q4_k_m"},
    {"train": "full"},
    {"train": "full", "checkpointing": "layer"},
    {"train": "full", "fsdp": 8},
    {"train": "lora"},
    {"train": "qlora", "checkpointing": "layer"},
]


def test_other_languages_keep_the_label() -> None:
    assert plan_words("one layer: MLP, saved for backward", "en").startswith("one layer")


def test_a_label_of_pieces() -> None:
    assert plan_words("one layer: MLP, saved for backward", "zh") == "一层：MLP，为反向传播保存"
    assert plan_words("optimizer: adamw", "zh") == "优化器：adamw"


@pytest.mark.parametrize("model", ["llama-3-8b", "qwen2-moe-a2.7b", "gemma-2-9b", "phi-3-mini"])
def test_every_label_of_a_run_has_its_words(model: str) -> None:
    for options in RUNS:
        for item in plan(model, PlanOptions(ctx=2048, **options)).memory.items:
            said = plan_words(item.label, "zh")
            assert said != item.label or item.label in ("logits", "MLP"), item.label


def test_every_phase_has_its_words() -> None:
    for phase in {*INFERENCE, *LLAMACPP, *PHASES}:
        assert plan_words(phase, "zh") != phase or phase == "logits"
