"""Remedies that name a range and a value."""

from __future__ import annotations

from typing import Any

import pytest

from gateup.checks import known
from gateup.checks.generation_usual import in_range


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("temperature", -1, "write 0 to 9; 0.7, or 0 for the likeliest token is usual"),
        ("top_p", 90, "90 percent are 0.9"),
        ("top_p", None, "0.9, and 1 turns it off is usual"),
        ("top_k", "fifty", "50, and 0 turns it off"),
        ("seed", [], "write 0 to 9; without the line"),
    ],
)
def test_a_value_is_named(key: str, value: Any, words: str) -> None:
    assert words in in_range(key, key, value, "0 to 9")


def test_text_that_holds_a_number_loses_its_quotes() -> None:
    assert in_range("temp", "temperature", "0.7", "0 to 9") == "write a number: temp: 0.7"
    assert known.number("0.7") is None
