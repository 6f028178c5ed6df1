"""Drawings of the lab's own, as inline SVG: the MLP's live tensors, and who holds what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gateup.account.report.svg import WIDTH, Piece, rect, rule, svg, text
from gateup.lab.data_split import Range, RankPart, Split
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
RANK_COLOURS = 8
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


def split_matrices(found: Split, names: Mapping[str, str]) -> str:
    """The layer's matrices with each rank's rows or columns in its colour."""
    body: list[str] = []
    gate_up = found.rows != found.width
    if gate_up:
        tall = [("gate_up", "both")]
    else:
        tall = [("gate", "gate"), ("up", "up")] if found.gated else [("up", "up")]
    x = 0.0
    for label, which in tall:
        bands = []
        for part in found.parts:
            rows = {"gate": part.gate, "up": part.up, "both": (*part.gate, *part.up)}[which]
            bands += [_band(part, held, found, "rows") for held in dict.fromkeys(rows)]
        high = 176.0 if gate_up else 120.0
        body.append(text(x, 12, f"{label} [{found.rows:,}, {found.hidden:,}]", "start", "name"))
        body.append(matrix(x, 20, 96, high, bands, rows=True))
        x += 164 if gate_up else 136
    bands = [_band(p, held, found, "columns") for p in found.parts for held in p.down]
    body.append(text(x, 12, f"down [{found.hidden:,}, {found.width:,}]", "start", "name"))
    body.append(matrix(x, 20, 150, 76, bands, rows=False))
    return svg(204 if gate_up else 148, names["matrices"], body)


def _band(part: RankPart, held: Range, found: Split, what: str) -> tuple[float, float, Piece]:
    """A rank's part of a matrix; an expert that is whole on a rank has no rank's colour."""
    first, last = held
    total = found.width if what == "columns" else found.rows
    whole = last - first + 1 == found.width and len(found.parts) > 1
    colour = "other" if whole else rank_colour(part.rank)
    piece = Piece(colour, 1, "" if whole else f"rank {part.rank}: {first:,}–{last:,}")
    return first / total, (last + 1) / total, piece


def rank_colour(rank: int) -> str:
    """Ranks beyond the palette begin it again; their bands never touch those of the same colour."""
    return f"s{rank % RANK_COLOURS}"


def split_lanes(found: Split, names: Mapping[str, str]) -> str:
    """A lane for each rank, from x through its part of the width to the one all-reduce."""
    body: list[str] = []
    lane, top = 24.0, 18.0
    stops: tuple[tuple[str, float, float], ...]
    stops = (("x", 40.0, 26.0), ("gate, up", 84.0, 112.0), ("act ⊙", 214.0, 44.0))
    if not found.gated:
        stops = (stops[0], ("up", 84.0, 112.0), ("act", 214.0, 44.0))
    stops = (*stops, ("down", 276.0, 70.0))
    for name, x, width in stops:
        body.append(text(x + width / 2, 11, name, "middle", "name"))
    for part in found.parts:
        y = top + lane * part.rank
        css = rank_colour(part.rank)
        body.append(text(0, y + 14, f"{part.rank}", "start", "name"))
        body.append(rule(20, y + 10, 366, y + 10, "flow"))
        for i, (name, x, width) in enumerate(stops):
            colour = "other" if i == 0 else css
            body.append(rect(x, y + 1, width, 18, Piece(colour, 1, f"rank {part.rank}: {name}")))
        body.append(text(140, y + 14, _lane_text(found, part.rank), "middle", "on"))
    bottom = top + lane * len(found.parts)
    reduce = Piece("mlp", 1, names["all_reduce"])
    body.append(rect(366, top, 12, bottom - top - 4, reduce))
    middle = (top + bottom) / 2
    body.append(text(372, 11, "Σ", "middle", "total"))
    body.append(rule(378, middle - 2, 404, middle - 2, "flow"))
    body.append(text(410, middle + 2, "y", "start", "name"))
    body.append(text(372, bottom + 12, names["all_reduce"], "middle", "total"))
    return svg(bottom + 18, names["lanes"], body)


def _lane_text(found: Split, rank: int) -> str:
    part = found.parts[rank]
    if found.experts and part.experts is not None:
        first, last = part.experts
        if (first, last) != (0, found.experts - 1):
            return f"E {first}–{last}"
    first, last = part.down[0]
    return f"{first:,}–{last:,}"
