"""Known models are found by their sizes, and only by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateup.checks import known
from gateup.checks.context import Context
from gateup.model.presets import PRESETS

Described = Callable[..., Context]


def config(preset: str, **changes: Any) -> dict[str, Any]:
    return {**PRESETS[preset].config, **changes}


def test_twins(described: Described) -> None:
    def found(**changes: Any) -> list[str]:
        return [p.name for p in known.twins(described(config("llama-2-7b", **changes)).spec)]

    assert found() == ["llama-1-7b", "llama-2-7b"]
    assert found(vocab_size=32256) == ["llama-1-7b", "llama-2-7b"]
    assert found(vocab_size=32257) == []
    assert found(vocab_size=31999) == []
    assert found(intermediate_size=11009) == []
    assert found(num_key_value_heads=None) == ["llama-1-7b", "llama-2-7b"]
    assert found(num_key_value_heads=8) == []


def test_a_field_may_be_left_out(described: Described) -> None:
    spec = described(config("llama-2-70b", num_key_value_heads=64)).spec
    assert known.twins(spec) == []
    assert [p.name for p in known.twins(spec, without="num_key_value_heads")] == ["llama-2-70b"]


def test_nearest_goes_by_positions(described: Described) -> None:
    for positions, names in ((4096, "llama-2-7b"), (2048, "llama-1-7b")):
        spec = described(config("llama-2-7b", max_position_embeddings=positions)).spec
        assert known.names(known.nearest(spec)) == names
    spec = described(config("llama-2-7b", max_position_embeddings=8192)).spec
    assert known.names(known.nearest(spec)) == "llama-1-7b and llama-2-7b"


@pytest.mark.parametrize("value", [True, "1", None, [], float("nan"), float("inf"), 10**400])
def test_what_is_no_number(value: Any) -> None:
    assert known.number(value) is None


def test_numbers() -> None:
    assert (known.number(3), known.number(0.5), known.number(-1)) == (3.0, 0.5, -1.0)
    assert known.same(1e-5, 9.999999747378752e-06)
    assert not known.same(1e-5, 1e-6)
