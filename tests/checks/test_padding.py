"""What padding a width costs equals what the wider description holds more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateup.checks.context import Context
from gateup.checks.padding import DENSE, EXPERT, SHARED, added_weights, config_key, padded, widths
from gateup.model.presets import PRESETS

Described = Callable[..., Context]


@pytest.mark.parametrize(
    ("preset", "what", "key"),
    [
        ("llama-3-8b", DENSE, "intermediate_size"),
        ("mixtral-8x7b", EXPERT, "intermediate_size"),
        ("qwen3-30b-a3b", EXPERT, "moe_intermediate_size"),
        ("gpt-oss-20b", EXPERT, "intermediate_size"),
        ("qwen1.5-moe-a2.7b", SHARED, "shared_expert_intermediate_size"),
        ("deepseek-v2-lite", DENSE, "intermediate_size"),
    ],
)
def test_added_weights(described: Described, preset: str, what: str, key: str) -> None:
    config: dict[str, Any] = dict(PRESETS[preset].config)
    spec = described(config).spec
    width = dict(widths(spec))[what]
    wider = described({**config, key: width + 96}).spec
    assert config_key(spec, what) == key
    assert added_weights(spec, what, width, width + 96) == wider.params - spec.params
    assert padded(spec, what, width, width + 96).layers == wider.layers


def test_other_widths_stay(described: Described) -> None:
    spec = described(dict(PRESETS["deepseek-v2-lite"].config)).spec
    assert padded(spec, EXPERT, 9, 10).layers == spec.layers
    assert added_weights(spec, EXPERT, 9, 10) == 0
    assert widths(spec) == [(EXPERT, 1408), (DENSE, 10944), (SHARED, 2816)]
