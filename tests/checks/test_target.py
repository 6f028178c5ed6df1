"""What is split or quantised: asked for, declared, or in the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateup.account.parallel import block_group
from gateup.checks.context import Context
from gateup.checks.target import declared_quant, is_gguf, target
from gateup.files.checkpoint import open_model
from gateup.model.presets import PRESETS

Described = Callable[..., Context]


@pytest.mark.parametrize(
    ("settings", "fmt"),
    [
        ({"quant_method": "awq", "group_size": 128}, "awq:128"),
        ({"quant_method": "gptq", "group_size": 32}, "gptq:32"),
        ({"quant_method": "gptq", "group_size": -1}, None),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8:128"),
        ({"quant_method": "fp8", "weight_block_size": None}, None),
        ({"quant_method": "awq", "group_size": True}, None),
        ({"quant_method": "mxfp4"}, None),
        ("awq", None),
        (None, None),
    ],
)
def test_declared_quantisation(settings: Any, fmt: str | None) -> None:
    assert declared_quant({"quantization_config": settings}) == fmt


def test_what_is_asked_for_comes_first(described: Described, smollm2_gguf: Path) -> None:
    awq = {"quant_method": "awq", "group_size": 128}
    config = {**PRESETS["llama-3-8b"].config, "quantization_config": awq}
    asked = target(described(config, quant="gptq:64"))
    assert (asked.fmt, asked.source, block_group(asked.stored)) == (
        "gptq:64",
        "--quant gptq:64",
        64,
    )
    declared = target(described(config))
    assert (declared.fmt, block_group(declared.stored)) == ("awq:128", 128)
    assert declared.source == "config.json, field quantization_config"
    plain = target(described(dict(PRESETS["llama-3-8b"].config)))
    assert (plain.fmt, plain.source, block_group(plain.stored)) == ("bf16", "shapes", 1)
    file = target(Context(open_model(smollm2_gguf)))
    assert (file.source, block_group(file.stored)) == ("the file's types", 32)


def test_rows_that_no_group_divides_are_no_obstacle(described: Described) -> None:
    """hidden_size 2880 is no multiple of 128; the widths can be looked at all the same."""
    found = target(described(dict(PRESETS["gpt-oss-20b"].config), quant="awq:128"))
    assert block_group(found.stored) == 128


def test_which_are_gguf(described: Described, smollm2_gguf: Path) -> None:
    config = dict(PRESETS["llama-3-8b"].config)
    assert is_gguf(target(described(config, quant="q4_k_m")))
    assert is_gguf(target(Context(open_model(smollm2_gguf))))
    assert not is_gguf(target(described(config, quant="awq:128")))
    assert not is_gguf(target(described(config)))
