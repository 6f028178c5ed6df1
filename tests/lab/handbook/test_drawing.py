"""Charts: every point inside the axes, none rescaled by itself."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from gateup.lab.handbook.drawing import HEIGHT, WIDTH, chart


def points(svg: str) -> list[list[tuple[float, float]]]:
    return [
        [(float(x), float(y)) for x, y in (p.split(",") for p in found.split())]
        for found in re.findall(r'points="([^"]+)"', svg)
    ]


def test_lines_share_one_pair_of_axes_and_nothing_is_cut_off() -> None:
    svg = chart({"a": ([0, 1, 2], [-3, 0, 97]), "b": ([0, 2], [0, 0])}, "x", "y").svg
    ElementTree.fromstring(svg)
    a, b = points(svg)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in a + b)
    assert b[0][1] == b[1][1] == a[1][1]  # the same zero
    assert a[0][1] > a[1][1] > a[2][1]  # upwards is more
    low, high = a[0][1] - a[1][1], a[1][1] - a[2][1]
    assert abs(high / low - 97 / 3) < 1


def test_a_flat_line_and_names_in_markup() -> None:
    svg = chart({"<a>": ([1, 2], [5, 5])}, "x & y", "z")._repr_html_()
    ElementTree.fromstring(svg)
    assert "&lt;a&gt;" in svg
    assert "nan" not in svg
