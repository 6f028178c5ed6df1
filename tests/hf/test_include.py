"""Patterns are whole names, and a wrong one is answered with those it resembles."""

from __future__ import annotations

import pytest

from gateup.errors import UsageError
from gateup.hf.include import names, nearest, patterns, refuse_unmatched

THERE = [f"model.layers.{i}.mlp" for i in range(12)] + ["vision.blocks.0.ffn"]


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("model.layers.1?.mlp", [10, 11]),
        ("model.*.1.mlp", [1]),  # a star crosses dots
        ("*.mlp", list(range(12))),
        ("layers.1.mlp", []),
        ("model.layers.1", []),
        ("MODEL.LAYERS.1.MLP", []),
    ],
)
def test_a_pattern_is_a_whole_name(pattern: str, meant: list[int]) -> None:
    given = patterns(pattern)
    assert [n for n in THERE if names(n, given)] == [f"model.layers.{i}.mlp" for i in meant]
    assert names("anything", ())


@pytest.mark.parametrize(
    ("pattern", "first"),
    [
        ("layers.11.mlp", "model.layers.11.mlp"),
        ("model.layer.3.mlp", "model.layers.3.mlp"),
        ("*blocks*.mlp", "vision.blocks.0.ffn"),
        ("ffn", "vision.blocks.0.ffn"),
    ],
)
def test_the_nearest_comes_first(pattern: str, first: str) -> None:
    found = nearest(pattern, THERE)
    assert found[0] == first
    assert len(found) == 3


def test_every_pattern_has_to_name_something() -> None:
    refuse_unmatched(("*.mlp", "vision.*"), THERE)
    with pytest.raises(UsageError, match="include 'ffn' is the name of none of the 13 MLPs"):
        refuse_unmatched(("*.mlp", "ffn"), THERE)
