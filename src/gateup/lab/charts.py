"""Plotly figures as plain dictionaries: plotly.js draws them, its Python package is not needed.

Text and lines are in greys that can be read on a light and on a dark ground, so a chart need not
know which one it stands on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any

from gateup.lab.style import BOTH, GREY, GRID

Figure = dict[str, Any]
# What the flat charts have in common: the page's own background, quiet letters.
PLAIN: Figure = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"color": GREY, "size": 11},
}
CONFIG = {"displayModeBar": False, "responsive": True, "doubleClick": "reset"}
# From the side where the gate is shut, a little above.
CAMERA = {"eye": {"x": -1.38, "y": -1.52, "z": 0.88}, "center": {"x": 0, "y": 0, "z": -0.12}}
LIFT = 0.035  # of the z axis: how far the probe's dot stands above its surface


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
        "tickfont": {"size": 12},
        "nticks": 4,
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
            dot(lifted(probe, scale)),
        ],
        "layout": {
            "margin": {"l": 0, "r": 0, "t": 0, "b": 0},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "showlegend": False,
            "uirevision": "view",
            "scene": {
                "xaxis": {**axis, "title": {"text": "a"}, "range": [-reach, reach]},
                "yaxis": {**axis, "title": {"text": "b"}, "range": [-reach, reach]},
                "zaxis": {**axis, "title": {"text": ""}, "range": list(scale)},
                # A title would stand left of the numbers, outside a narrow plot.
                "annotations": [
                    {
                        "x": -reach,
                        "y": reach,
                        "z": scale[1],
                        "text": "z",
                        "showarrow": False,
                        "xanchor": "right",
                        "font": {"size": 14, "color": GREY},
                    }
                ],
                "aspectmode": "manual",
                "aspectratio": {"x": 1, "y": 1, "z": 0.75},
                "camera": CAMERA,
            },
        },
        "config": CONFIG,
    }


def dot(probe: tuple[float, float, float]) -> Figure:
    """The probe, `lifted`, as a trace of one point; its numbers are in the page's table."""
    a, b, z = probe
    return {
        "type": "scatter3d",
        "mode": "markers",
        "x": [a],
        "y": [b],
        "z": [z],
        "marker": {"size": 5, "color": "#111", "line": {"color": "#fff", "width": 2}},
        "hoverinfo": "skip",
    }


def lifted(
    probe: tuple[float, float, float], scale: tuple[float, float]
) -> tuple[float, float, float]:
    """A little above the surface, which would cover half of the dot."""
    a, b, z = probe
    return a, b, z + LIFT * (scale[1] - scale[0])


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
        "tickfont": {"size": 11},
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
            **PLAIN,
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


def heat(
    values: Sequence[Sequence[float]],
    texts: Sequence[Sequence[str]],
    *,
    x: Mapping[str, Any],
    y: Mapping[str, Any],
    scale: tuple[float, float],
    chosen: tuple[int, int] | None,
) -> Figure:
    """Rows of values above 0 as colours by their logarithm; what is 0 has none.

    texts   what a cell shows when it is pointed at
    scale   the values of the first and the last colour, which bound all of `values`
    chosen  (column, row) of the cell with a frame
    """
    low, high = (log10(v) for v in scale)
    powers: list[float] = list(range(ceil(low), floor(high) + 1))
    if len(powers) < 2:  # a scale with no power of ten inside, or one: its ends
        powers = [low, high]
    axis = {"color": GREY, "tickfont": {"size": 10}, "fixedrange": True, "automargin": True}
    axis |= {"zeroline": False, "showgrid": False}
    shapes = []
    if chosen is not None:
        column, row = chosen
        sides = {"x0": column - 0.5, "x1": column + 0.5, "y0": row - 0.5, "y1": row + 0.5}
        shapes = [{"type": "rect", **sides, "line": {"color": "#e8731e", "width": 2.5}}]
    return {
        "data": [
            {
                "type": "heatmap",
                "z": [[log10(v) if v > 0 else None for v in row] for row in values],
                "text": [list(row) for row in texts],
                "hovertemplate": "%{text}<extra></extra>",
                "zmin": low,
                "zmax": high,
                "colorscale": "Cividis",
                "showscale": any(v > 0 for row in values for v in row),
                "colorbar": {
                    "tickvals": powers,
                    "ticktext": [f"{10.0**p:.4g}" for p in powers],
                    "tickfont": {"color": GREY, "size": 10},
                    "thickness": 10,
                    "outlinewidth": 0,
                    "len": 1,
                },
            }
        ],
        "layout": {
            "margin": {"l": 36, "r": 0, "t": 8, "b": 36},
            **PLAIN,
            "xaxis": {**axis, **x},
            "yaxis": {**axis, **y},
            "shapes": shapes,
        },
        "config": CONFIG,
    }


def whole_ticks(count: int, most: int = 8) -> list[int]:
    """Of 0 … count - 1, every 1st, 2nd, 5th, 10th … as `most` allows, and the last."""
    step = next(s * 10**p for p in range(10) for s in (1, 2, 5) if s * 10**p * most >= count)
    # One that would stand close to the last gives way to it.
    return [i for i in range(0, count - 1, step) if count - 1 - i > step / 2] + [count - 1]


def paired_bars(
    labels: Sequence[str], series: Sequence[tuple[str, int, Sequence[float]]], title: str
) -> Figure:
    """Shares, one group of bars for each label, on an axis from 0 to 1 whatever they are.

    series: (name, colour's index, a share for each label); the first stands above
    """
    count = len(labels)
    axis = {"color": GREY, "tickfont": {"size": 11}, "fixedrange": True, "automargin": True}
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": list(range(count)),
                "x": list(shares),
                "text": [f"{100 * share:.2f} %" for share in shares],
                "textposition": "outside",
                "textfont": {"color": GREY, "size": 10},
                "cliponaxis": False,
                "hoverinfo": "skip",
                "marker": {"color": colour(index)},
            }
            for name, index, shares in series
        ],
        "layout": {
            "margin": {"l": 40, "r": 48, "t": 8, "b": 40},
            **PLAIN,
            "showlegend": False,
            "barmode": "group",
            "bargap": 0.25,
            "xaxis": {
                **axis,
                "gridcolor": GRID,
                "range": [0, 1],
                "tickformat": ".0%",
                "title": {"text": title},
            },
            "yaxis": {
                **axis,
                "autorange": "reversed",
                "tickvals": list(range(count)),
                "ticktext": list(labels),
            },
        },
        "config": CONFIG,
    }


def harmless(label: str, most: int = 40) -> str:
    """A text as a chart's label: cut, and without what Plotly would take for markup."""
    cut = label if len(label) <= most else label[: most - 1] + "…"
    return escape(cut).replace("$", "＄")  # a dollar sign begins a formula
