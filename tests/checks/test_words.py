"""Layers and rows in words."""

from __future__ import annotations

import pytest

from gateup.checks.words import in_layers, spans, where, written
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


def test_numbers_are_written_as_a_file_has_them() -> None:
    for value, text in (
        (16777216, "16777216"),
        (16777216.0, "16777216"),
        (1e6, "1000000"),
        (128256, "128256"),
        (-1, "-1"),
        (0.7, "0.7"),
        (1e-5, "1e-05"),
        (9.99999975e-06, "1e-05"),
        (4778.6666, "4778.67"),
        (14336001.5, "14336001.5"),
        (float("inf"), "inf"),
        (1e20, "1e+20"),
    ):
        assert written(value) == text
