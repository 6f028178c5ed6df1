"""Charts as inline SVG: stacked bars, stacked columns, lines. No scripts, no outside resources.

Colours are CSS classes ("c-mlp") that the page defines, so they follow light and dark. Charts are
440 units wide: on a phone (about 340 px) their 11-unit text is still 8.5 px.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

WIDTH = 440
Write = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Piece:
    """One segment of a bar or column: its colour class, size, and the text shown on hover."""

    colour: str
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Series:
    """One line through (x, y) points."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Axes:
    """What the axes are called and how their numbers are written."""

    x_name: str
    y_name: str
    x: Write
    y: Write
    binary: bool = False  # the y axis in powers of two


def svg(height: float, title: str, body: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}">'
        + "".join(body)
        + "</svg>"
    )


def text(x: float, y: float, content: str, anchor: str = "start", css: str = "") -> str:
    cls = f' class="{css}"' if css else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{cls}>{escape(content)}</text>'


def rect(x: float, y: float, width: float, height: float, piece: Piece) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0):.2f}" height="{max(height, 0):.2f}"'
        f' class="c-{escape(piece.colour)}"><title>{escape(piece.text)}</title></rect>'
    )


def rule(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css}"/>'


def ticks(top: float, about: int = 4) -> list[float]:
    """Round steps (1, 2 or 5 times a power of ten) from 0 up to `top`."""
    if top <= 0:
        return [0.0]
    rough = top / about
    power = 10.0 ** floor(log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    return [step * i for i in range(int(top / step + 1e-9) + 1)]


def binary_ticks(top: float, about: int = 4) -> list[float]:
    """Steps that are powers of two, for contexts and bytes."""
    if top <= 0:
        return [0.0]
    step = 1.0
    while step * about < top:
        step *= 2
    return [step * i for i in range(int(top / step + 1e-9) + 1)]


def stacked_bars(title: str, bars: Sequence[tuple[str, Sequence[Piece]]]) -> str:
    """Horizontal bars, each filling the width: shares of a whole, with the total in its label."""
    body, y = [], 0.0
    for label, pieces in bars:
        whole = sum(p.value for p in pieces)
        body.append(text(0, y + 12, label))
        x = 0.0
        for piece in pieces:
            width = WIDTH * piece.value / whole if whole else 0.0
            body.append(rect(x, y + 18, width, 22, piece))
            percent = f"{100 * piece.value / whole:.1f} %" if whole else ""
            if width > 44:  # room for the number
                body.append(text(x + width / 2, y + 33, percent, "middle", "on"))
            x += width
        y += 54
    return svg(max(y, 1), title, body)


def stacked_columns(
    title: str,
    columns: Sequence[tuple[str, Sequence[Piece]]],
    write: Write,
    limit: tuple[float, str] | None = None,
    *,
    totals: bool = True,
) -> str:
    """One column per phase, its pieces on top of each other; `limit` draws a line across, `totals`
    writes each column's sum above it."""
    left, right, top, bottom, height = 56, 6, 18, 30, 250
    tallest = max((sum(p.value for p in pieces) for _, pieces in columns), default=0.0)
    # A limit far above the columns would flatten them: it is then left to the text.
    shown = limit is not None and limit[0] <= 3 * max(tallest, 1)
    most = max(tallest, limit[0] if limit and shown else 0.0, 1.0) * 1.04
    plot_w, plot_h = WIDTH - left - right, height - top - bottom

    def y_of(value: float) -> float:
        return top + plot_h * (1 - value / most)

    body: list[str] = []
    labels: list[str] = []  # drawn last: no line runs through a text
    for tick in binary_ticks(most):
        body.append(rule(left, y_of(tick), WIDTH - right, y_of(tick), "grid"))
        labels.append(text(left - 6, y_of(tick) + 4, write(tick), "end"))
    step = plot_w / max(len(columns), 1)
    wide = min(step * 0.76, 72.0)
    for i, (label, pieces) in enumerate(columns):
        at, below = left + step * (i + 0.5) - wide / 2, 0.0
        for piece in pieces:
            y = y_of(below + piece.value)
            body.append(rect(at, y, wide, y_of(below) - y, piece))
            below += piece.value
        labels.append(text(left + step * (i + 0.5), height - 12, label, "middle"))
        if totals:
            middle = left + step * (i + 0.5)
            labels.append(text(middle, y_of(below) - 4, write(below), "middle", "total"))
    if limit and shown:
        body.append(rule(left, y_of(limit[0]), WIDTH - right, y_of(limit[0]), "limit"))
        # Above the plot, where no column and no sum can be.
        labels.append(text(WIDTH - right, 9, limit[1], "end", "limit"))
    return svg(height, title, body + labels)


def lines(
    title: str,
    series: Sequence[Series],
    axes: Axes,
    marks: Sequence[tuple[float, float, str]] = (),
    levels: Sequence[tuple[float, str]] = (),
) -> str:
    """Lines over contexts from 0; `marks` are dots with a label, `levels` horizontal lines."""
    left, right, top, bottom, height = 56, 10, 24, 42, 270
    x_most = max((x for s in series for x, _ in s.points), default=1.0) or 1.0
    highest = max((y for s in series for _, y in s.points), default=1.0)
    drawn = [(v, name) for v, name in levels if v <= 3 * max(highest, 1)]
    y_most = 1.06 * max([highest, 1.0, *(v for v, _ in drawn)])
    plot_w, plot_h = WIDTH - left - right, height - top - bottom

    def at(x: float, y: float) -> tuple[float, float]:
        return left + plot_w * x / x_most, top + plot_h * (1 - y / y_most)

    body: list[str] = []
    labels = [text(0, 12, axes.y_name), text(WIDTH, height - 4, axes.x_name, "end")]
    for tick in (binary_ticks if axes.binary else ticks)(y_most):
        _, y = at(0, tick)
        body.append(rule(left, y, WIDTH - right, y, "grid"))
        labels.append(text(left - 6, y + 4, axes.y(tick), "end"))
    for tick in binary_ticks(x_most):
        x, _ = at(tick, 0)
        labels.append(text(min(x, WIDTH - right - 12), height - 24, axes.x(tick), "middle"))
    for s in series:
        path = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in s.points)
        dash = " dashed" if s.dashed else ""
        body.append(
            f'<polyline points="{path}" class="l-{escape(s.colour)}{dash}">'
            f"<title>{escape(s.name)}</title></polyline>"
        )
    for value, name in drawn:
        _, y = at(0, value)
        body.append(rule(left, y, WIDTH - right, y, "limit"))
        labels.append(text(left + 4, y - 4, name, "start", "limit"))
    for mx, my, name in marks:
        x, y = at(mx, my)
        near_right = x > WIDTH / 2
        body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="mark"/>')
        labels.append(
            text(x - 7 if near_right else x + 7, y - 7, name, "end" if near_right else "start")
        )
    return svg(height, title, body + labels)
