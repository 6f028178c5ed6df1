"""Drawings of the lab's own, as inline SVG: the MLP's live tensors, and who holds what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gateup.account.report.svg import WIDTH, Piece, rect, rule, svg, text
from gateup.lab.data_timeline import Role, Timeline

# Colour class by a tensor's role.
ROLES: Mapping[Role, str] = {
    "gate": "s0",
    "up": "s1",
    "act": "s6",
    "product": "s3",
    "narrow": "other",
    "copy": "s7",
}
_LABEL = 92.0  # room for the step's name


def timeline_bars(
    title: str, timeline: Timeline, most: int, write: Callable[[float], str], kept: str
) -> str:
    """A bar for each operation, from the first down to the last, as long as what is alive.

    most  bytes that fill the width: the same for every drawing that is to be compared
    kept  the name of the output that tiles are gathered into
    """
    body: list[str] = []
    room = WIDTH - _LABEL - 62  # the total stands behind the bar
    peak = timeline.peak
    for i, step in enumerate(timeline.steps):
        y = 22.0 * i
        body.append(text(_LABEL - 6, y + 13, step.name, "end", "name" if step is peak else ""))
        x = _LABEL
        pieces = [
            Piece(ROLES[t.role], timeline.nbytes(t), f"{t.name}: {write(timeline.nbytes(t))}")
            for t in step.alive
        ]
        if timeline.kept:
            pieces.append(Piece("other", timeline.kept, f"{kept}: {write(timeline.kept)}"))
        for piece in pieces:
            wide = room * piece.value / most if most else 0.0
            body.append(rect(x, y + 2, max(wide - 0.75, 0.25), 16, piece))
            x += wide
        total = write(timeline.total(step))
        body.append(text(x + 4, y + 13, total, "start", "total" if step is peak else ""))
    height = 22.0 * len(timeline.steps)
    edge = _LABEL + room
    return svg(height, title, [rule(edge, 0, edge, height, "grid"), *body])


def matrix(
    x: float,
    y: float,
    width: float,
    height: float,
    bands: Sequence[tuple[float, float, Piece]],
    *,
    rows: bool,
) -> str:
    """A matrix with bands of its rows (or columns) coloured. bands: (from, to, piece), 0 to 1."""
    out = []
    for start, stop, piece in bands:
        if rows:
            out.append(rect(x, y + height * start, width, height * (stop - start), piece))
        else:
            out.append(rect(x + width * start, y, width * (stop - start), height, piece))
    out.append(
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="edge"/>'
    )
    return "".join(out)
