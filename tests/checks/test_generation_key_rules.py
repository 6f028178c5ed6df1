"""Keys that nothing reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateup.checks.generation_key_rules import TRANSFORMERS, keys
from gateup.checks.generation_rules import NAMES

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("temprature", "temperature"),
        ("repetition_penality", "repetition_penalty"),
        ("max_new_token", "max_new_tokens"),
        ("Top_P", "top_p"),
        ("something_else", ""),
    ],
)
def test_a_slip_of_the_pen(described: Make, tiny: dict[str, Any], slip: str, meant: str) -> None:
    [found] = keys(replace(described(tiny), generation={slip: 1, "do_sample": True}))
    assert found.severity == "note"
    assert found.evidence[0].expected == (f"{meant}?" if meant else "")
    assert (f"write {meant} for" in found.remedy) is bool(meant)


def test_what_is_read_says_nothing(described: Make, tiny: dict[str, Any]) -> None:
    from transformers import GenerationConfig

    theirs = set(vars(GenerationConfig())) - {"_from_model_config"}
    assert theirs <= TRANSFORMERS | {n for names in NAMES.values() for n in names}
    assert keys(replace(described(tiny), generation=dict.fromkeys(theirs, 1))) == []
