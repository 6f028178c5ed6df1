"""Axes and scales of charts."""

from __future__ import annotations

import pytest

from gateup.lab.charts import heat, whole_ticks


@pytest.mark.parametrize(
    ("count", "ticks"),
    [
        (1, [0]),
        (2, [0, 1]),
        (4, [0, 1, 2, 3]),
        (30, [0, 5, 10, 15, 20, 25, 29]),
        (32, [0, 5, 10, 15, 20, 25, 31]),
        (126, [0, 20, 40, 60, 80, 100, 125]),
    ],
)
def test_layers_have_whole_numbers_and_the_last_one_is_named(count: int, ticks: list[int]) -> None:
    found = whole_ticks(count)
    assert found == ticks
    assert len(found) <= 9


def test_a_scale_between_two_powers_of_ten_names_its_ends() -> None:
    def bar(low: float, high: float) -> list[str]:
        drawn = heat([[low, high]], [["", ""]], x={}, y={}, scale=(low, high), chosen=None)
        names: list[str] = drawn["data"][0]["colorbar"]["ticktext"]
        return names

    assert bar(2.5, 7.25) == ["2.5", "7.25"]
    assert bar(0.5, 7.25) == ["0.5", "7.25"]
    assert bar(0.5, 20) == ["1", "10"]


def test_nothing_but_zeros_has_no_scale() -> None:
    drawn = heat([[0.0]], [[""]], x={}, y={}, scale=(1.0, 1.001), chosen=None)
    assert not drawn["data"][0]["showscale"]
