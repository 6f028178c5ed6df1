"""Figures as HTML: value with its kind, and on demand the formula, the numbers and the source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from gateup.account.figure import Figure
from gateup.account.report import units

Words = Mapping[str, str]


def figure_list(figures: Iterable[tuple[str, Figure]], words: Words, *, how: bool = False) -> str:
    """A list of (name, figure). how: with the formulas opened.

    Every figure can be opened by itself, and stays as the reader left it where only its value
    changes (see frame.py's script).
    """
    return (
        '<dl class="figures">'
        + "".join(figure_row(name, figure, words, how) for name, figure in figures)
        + "</dl>"
    )


def figure_row(name: str, figure: Figure, words: Words, how: bool) -> str:
    """One figure. The sign before the value is its kind's."""
    exact = f"{units.raw(figure.value)} {'B' if figure.unit == 'bytes' else figure.unit}".strip()
    lines = [f"<p>{text(exact)} · {text(words[figure.kind])}</p>"]
    if figure.formula:
        lines.append(f"<p><code>{text(figure.formula)}</code></p>")
    if figure.numbers and figure.numbers != figure.formula:
        lines.append(f"<p><code>= {text(figure.numbers)}</code></p>")
    if figure.source:
        lines.append(f"<p>{text(words['source'] + words['colon'])}{text(figure.source)}</p>")
    opened = " open" if how else ""
    return (
        f'<div class="figure"><details{opened}><summary><dt>{text(name)}</dt>'
        f"<dd>{text(units.tagged(figure))}</dd></summary>"
        f'<div class="how">{"".join(lines)}</div></details></div>'
    )


def table(head: Iterable[str], rows: Iterable[Iterable[str]], classes: Iterable[str] = ()) -> str:
    """A table of texts (escaped here); the first column is text, the others numbers."""
    css = list(classes)
    body = []
    for i, row in enumerate(rows):
        mark = f' class="{css[i]}"' if i < len(css) and css[i] else ""
        body.append(f"<tr{mark}>" + "".join(f"<td>{text(c)}</td>" for c in row) + "</tr>")
    names = "".join(f"<th>{text(h)}</th>" for h in head)
    return f'<div class="wide"><table><tr>{names}</tr>{"".join(body)}</table></div>'


def legend(names: Iterable[tuple[str, str]]) -> str:
    """(colour class, name) of each thing drawn."""
    keys = "".join(f'<span><i class="key b-{escape(c)}"></i>{text(n)}</span>' for c, n in names)
    return f'<div class="keys">{keys}</div>'


def text(content: str) -> str:
    """A text, perhaps from a user's file, as HTML."""
    return escape(units.printable(content))
