"""Line charts for the experiments: inline SVG that a notebook and a page show alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

# Readable on light and on dark ground.
COLOURS = ("#e8731e", "#1d9bab", "#5d82e8", "#ad6cc6", "#62a346", "#d65aa5")
WIDTH, HEIGHT = 440, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 12, 46

Line = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Drawing:
    """An SVG. A notebook calls `_repr_html_`."""

    svg: str

    def _repr_html_(self) -> str:
        return self.svg


def chart(lines: Mapping[str, Line], x: str, y: str) -> Drawing:
    """Lines by name, each (x values, y values), on one pair of axes with nothing cut off."""
    xs = [float(v) for line in lines.values() for v in line[0]]
    ys = [float(v) for line in lines.values() for v in line[1]]
    across, up = _Axis.over(xs, LEFT, WIDTH - RIGHT), _Axis.over(ys, HEIGHT - BOTTOM, TOP)
    body = [_grid(across, up)]
    for i, (name, (xv, yv)) in enumerate(lines.items()):
        points = " ".join(
            f"{across.place(a):.1f},{up.place(b):.1f}" for a, b in zip(xv, yv, strict=True)
        )
        colour = COLOURS[i % len(COLOURS)]
        body.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2">'
            f"<title>{escape(name)}</title></polyline>"
        )
    body.append(_legend(list(lines)))
    body.append(_text(WIDTH - RIGHT, HEIGHT - 20, x, "end"))
    body.append(_text(LEFT + 4, TOP + 8, y, "start"))
    names = ", ".join(lines)
    return Drawing(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" style="max-width:36rem" role="img" '
        f'aria-label="{escape(f"{y} / {x}: {names}")}">{"".join(body)}</svg>'
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    """From values to places. step: between two ticks."""

    low: float
    high: float
    step: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> _Axis:
        """The smallest axis of whole steps that holds every value."""
        low, high = min(values), max(values)
        rough = (high - low or 1.0) / 4
        power = 10.0 ** floor(log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
        return cls(floor(low / step) * step, ceil(high / step) * step, step, start, end)

    def place(self, value: float) -> float:
        part = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[float]:
        n = round((self.high - self.low) / self.step)
        return [self.low + i * self.step for i in range(n + 1)]


def _grid(across: _Axis, up: _Axis) -> str:
    out = []
    for tick in up.ticks():
        at = up.place(tick)
        out.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" '
            'stroke="#858c99" stroke-opacity="0.3"/>'
        )
        out.append(_text(LEFT - 5, at + 4, f"{round(tick, 9):g}", "end"))
    for tick in across.ticks():
        at = across.place(tick)
        out.append(_text(at, HEIGHT - BOTTOM + 14, f"{round(tick, 9):g}", "middle"))
    return "".join(out)


def _legend(names: Sequence[str]) -> str:
    """In one row below: names are short."""
    out, at = [], float(LEFT)
    for i, name in enumerate(names):
        colour = COLOURS[i % len(COLOURS)]
        out.append(f'<rect x="{at:.1f}" y="{HEIGHT - 13}" width="10" height="10" fill="{colour}"/>')
        out.append(_text(at + 14, HEIGHT - 4, name, "start"))
        at += 26 + 6.6 * len(name)
    return "".join(out)


def _text(x: float, y: float, content: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="11" '
        f'font-family="system-ui,sans-serif" fill="currentColor">{escape(content)}</text>'
    )
