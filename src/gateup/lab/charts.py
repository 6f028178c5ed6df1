"""Plotly figures as plain dictionaries: plotly.js draws them, its Python package is not needed.

Text and lines are in greys that can be read on a light and on a dark ground, so a chart need not
know which one it stands on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateup.lab.style import BOTH, GREY, GRID

Figure = dict[str, Any]
CONFIG = {"displayModeBar": False, "responsive": True, "doubleClick": "reset"}
# From the side where the gate is shut, a little above.
CAMERA = {"eye": {"x": -1.2, "y": -1.32, "z": 0.78}, "center": {"x": 0, "y": 0, "z": -0.1}}


def colour(index: int) -> str:
    """The series' colour, the same in every chart of a page."""
    return BOTH[index % len(BOTH)]


def surface(
    line: Sequence[float],
    z: Sequence[Sequence[float]],
    reach: float,
    scale: tuple[float, float],
    probe: tuple[float, float, float],
) -> Figure:
    """z over a (x) and b (y); trace 1 is the probe's dot."""
    axis = {
        "color": GREY,
        "gridcolor": GRID,
        "zerolinecolor": GREY,
        "showbackground": False,
        "tickfont": {"size": 9},
        "nticks": 5,
    }
    return {
        "data": [
            {
                "type": "surface",
                "x": list(line),
                "y": list(line),
                "z": [list(row) for row in z],
                "cmin": -max(map(abs, scale)),
                "cmax": max(map(abs, scale)),
                "colorscale": [[0, "#2f6fd6"], [0.5, "#d9dbe0"], [1, "#d9600a"]],
                "showscale": False,
                "contours": {"z": {"show": True, "color": "rgba(0,0,0,.25)", "width": 1}},
                "hovertemplate": "a %{x:.2f}, b %{y:.2f}<br>z %{z:.4f}<extra></extra>",
            },
            dot(probe),
        ],
        "layout": {
            "margin": {"l": 0, "r": 0, "t": 0, "b": 0},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "showlegend": False,
            "uirevision": "view",
            "scene": {
                "xaxis": {**axis, "title": {"text": "a"}, "range": [-reach, reach]},
                "yaxis": {**axis, "title": {"text": "b"}, "range": [-reach, reach]},
                "zaxis": {**axis, "title": {"text": "z"}, "range": list(scale)},
                "aspectmode": "manual",
                "aspectratio": {"x": 1, "y": 1, "z": 0.75},
                "camera": CAMERA,
            },
        },
        "config": CONFIG,
    }


def dot(probe: tuple[float, float, float]) -> Figure:
    """The probe as a trace of one point."""
    a, b, z = probe
    return {
        "type": "scatter3d",
        "mode": "markers",
        "x": [a],
        "y": [b],
        "z": [z],
        "marker": {"size": 5, "color": "#111", "line": {"color": "#fff", "width": 2}},
        "hovertemplate": "a %{x:.2f}, b %{y:.2f}<br>z %{z:.4f}<extra></extra>",
    }


def lines(
    series: Sequence[tuple[str, int, Sequence[float], Sequence[float]]],
    *,
    x: Mapping[str, Any],
    y: Mapping[str, Any],
    at: float | None = None,
) -> Figure:
    """series: (name, colour's index, x, y). x, y: Plotly's axes (title, range, type).

    at  a vertical line: where the probe is
    """
    axis = {
        "color": GREY,
        "gridcolor": GRID,
        "zerolinecolor": GREY,
        "tickfont": {"size": 10},
        "automargin": True,
        "fixedrange": True,
    }
    shapes = []
    if at is not None:
        shapes = [
            {
                "type": "line",
                "x0": at,
                "x1": at,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": GREY, "width": 1, "dash": "dot"},
            }
        ]
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": list(xs),
                "y": list(ys),
                "line": {"color": colour(index), "width": 2, "simplify": False},
                "hovertemplate": "%{y:.4g}<extra>" + name + "</extra>",
            }
            for name, index, xs, ys in series
        ],
        "layout": {
            "margin": {"l": 44, "r": 8, "t": 8, "b": 36},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"color": GREY, "size": 11},
            "showlegend": False,
            "hovermode": "x",
            "xaxis": {**axis, **x},
            "yaxis": {**axis, **y},
            "shapes": shapes,
        },
        "config": CONFIG,
    }


def mark(x: float, y: float, label: str, place: str) -> Figure:
    """A dot with its label at `place` ("top left", "bottom right")."""
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": [x],
        "y": [y],
        "text": [label],
        "textposition": place,
        "textfont": {"color": GREY, "size": 12},
        "marker": {"size": 9, "color": GREY, "line": {"color": "#fff", "width": 1}},
        "hoverinfo": "skip",
    }
