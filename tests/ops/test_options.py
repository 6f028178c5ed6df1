"""Options are checked where they are made, and a budget becomes a tile."""

from __future__ import annotations

import pytest

from gateup.errors import UsageError
from gateup.ops.options import MLPOptions

FAULTS = {
    "rounding is 'bf16'": {"rounding": "bf16"},
    "save is 'none'": {"save": "none"},
    "tile is 0": {"tile": 0},
    "tile is -4": {"tile": -4},
    "tile is 2.5": {"tile": 2.5},
    "tile is True": {"tile": True},
    "tile is '64'\n  expected: a whole number of tokens, 1 or more": {"tile": "64"},
    "budget is 0": {"budget": 0},
    "budget is True": {"budget": True},
    "budget is 1000000.0\n  expected: a whole number of bytes, 1 or more": {"budget": 1e6},
    "rounding is ['hf']": {"rounding": ["hf"]},
    "save is None": {"save": None},
    "both tile (8) and budget (4096) are given": {"tile": 8, "budget": 4096},
}


@pytest.mark.parametrize("text", FAULTS)
def test_what_cannot_be_is_refused(text):
    with pytest.raises(UsageError) as caught:
        MLPOptions(**FAULTS[text])
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("options", "size"),
    [
        (MLPOptions(), None),
        (MLPOptions(tile=7), 7),
        # Four buffers of 100 columns, 2 bytes each: 800 bytes a token.
        (MLPOptions(budget=8000), 10),
        (MLPOptions(budget=8799), 10),
        # In float32: 1,600.
        (MLPOptions(budget=8000, rounding="wide"), 5),
    ],
)
def test_tile_size(options, size):
    assert options.tile_size(100, 2) == size
    assert options.tile_for(3, 100, 2) == 3
    assert options.tile_for(1000, 100, 2) == (size or 1000)


def test_a_budget_below_one_token_is_refused_with_both_numbers():
    with pytest.raises(UsageError) as caught:
        MLPOptions(budget=799).tile_size(100, 2)
    assert str(caught.value) == (
        "budget is 799 bytes, one token needs 800\n"
        "  expected: at least 800 (4 intermediates × 100 × 2 bytes), and n times that for n tokens"
        " at a time"
    )
