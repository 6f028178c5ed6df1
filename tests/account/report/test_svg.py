"""Charts: pieces in proportion, ticks that are round, text that is only text."""

from __future__ import annotations

import re

import pytest

from gateup.account.report import svg
from gateup.account.report.svg import Axes, Piece, Series


def widths(chart: str) -> list[float]:
    return [float(w) for w in re.findall(r'<rect [^>]*width="([\d.]+)"', chart)]


def test_bars_are_shares_of_the_whole_width() -> None:
    chart = svg.stacked_bars("t", [("a", [Piece("mlp", 3, "x"), Piece("kv", 1, "y")])])
    assert widths(chart) == [330.0, 110.0]
    assert "75.0 %" in chart


def test_an_empty_bar_is_no_division_by_zero() -> None:
    assert "<svg" in svg.stacked_bars("t", [("a", [Piece("mlp", 0, "x")])])
    assert "<svg" in svg.stacked_columns("t", [], str)
    assert "<svg" in svg.lines("t", [], Axes("x", "y", str, str))


def test_columns_stand_on_each_other() -> None:
    chart = svg.stacked_columns(
        "t", [("a", [Piece("mlp", 60, "x"), Piece("kv", 40, "y")])], "{:.0f}".format
    )
    tops = [float(y) for y in re.findall(r'<rect x="[\d.]+" y="([\d.]+)"', chart)]
    heights = [float(h) for h in re.findall(r'height="([\d.]+)" class="c-', chart)]
    assert heights[0] == pytest.approx(1.5 * heights[1], abs=0.02)
    assert tops[1] + heights[1] == pytest.approx(tops[0], abs=0.02)
    assert ">100<" in chart


def test_a_limit_far_above_is_not_drawn() -> None:
    column = [("a", [Piece("mlp", 10, "x")])]
    assert 'class="limit"' in svg.stacked_columns("t", column, str, (20.0, "cap"))
    assert 'class="limit"' not in svg.stacked_columns("t", column, str, (1000.0, "cap"))


@pytest.mark.parametrize(
    ("top", "expected"),
    [(10, [0, 5, 10]), (100, [0, 50, 100]), (7, [0, 2, 4, 6]), (0, [0]), (0.3, [0, 0.1, 0.2, 0.3])],
)
def test_ticks_are_round(top: float, expected: list[float]) -> None:
    assert svg.ticks(top) == pytest.approx(expected)


def test_binary_ticks_are_powers_of_two() -> None:
    assert svg.binary_ticks(65536) == [0, 16384, 32768, 49152, 65536]
    assert svg.binary_ticks(0) == [0]


def test_lines_start_and_end_at_the_frame() -> None:
    axes = Axes("x", "y", str, str)
    chart = svg.lines("t", [Series("s", "kv", [(0, 0), (100, 50)])], axes, [(50, 25, "here")])
    points = re.search(r'points="([^"]+)"', chart)
    assert points is not None
    start, end = (tuple(map(float, p.split(","))) for p in points[1].split())
    dot = re.search(r'cx="([\d.]+)" cy="([\d.]+)"', chart)
    assert dot is not None
    assert float(dot[1]) == pytest.approx((start[0] + end[0]) / 2, abs=0.1)
    assert float(dot[2]) == pytest.approx((start[1] + end[1]) / 2, abs=0.1)
    assert end[1] < start[1]  # up is more
    assert "here" in chart


def test_text_is_escaped() -> None:
    chart = svg.stacked_bars('<t>"', [("<b>", [Piece("mlp", 1, "<i>")])])
    assert not re.search(r"<[tbi]>", chart)
    assert "&lt;b&gt;" in chart
