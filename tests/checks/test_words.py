"""Layers and rows in words."""

from __future__ import annotations

import pytest

from gateup.checks.words import in_layers, spans, where
from gateup.model import presets


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "layer 3"),
        ([2, 0, 1, 5], "layers 0-2, 5"),
        ([1, 1], "layer 1"),
        (range(0, 30, 2), "layers 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 3 more"),
    ],
)
def test_layers(numbers: list[int], text: str) -> None:
    assert in_layers(numbers) == text


def test_spans_of_nothing() -> None:
    assert spans([]) == ""


def test_rows_inside_and_outside_the_layers() -> None:
    rows = [r for r in presets.spec("llama-3-8b").rows if r.layer in (None, 4)]
    assert where(rows) == "layer 4 and embed_tokens, norm, lm_head"
