"""What the terminal reports are made of: a console, paragraphs, tables that break no word.

All text that comes from files is put in as rich Text, never as markup, with control characters
escaped. Without a terminal there are no colours, no lines and no wrapping, only aligned columns.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import IO, Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from gateup.account.report import units

# What a terminal that knows no UTF-8 gets instead.
_PLAIN = str.maketrans(
    {"≤": "<=", "≈": "~", "·": "*", "⊙": "*", "×": "x", "█": "#", "…": "...", "−": "-", "Σ": "sum "}
    | dict.fromkeys("▏▎▍▌", "")
    | dict.fromkeys("▋▊▉", "#")
)


_TRAILING = re.compile(r" +(?=\n|\Z)")

# The first word of an indented cell moves with its indentation.
_WORD = re.compile(r"^ *\S+|\S+")

PIPE_WIDTH = 1 << 16  # a file has no width, and a pager scrolls: nothing is wrapped
MIN_WIDTH = 20  # narrower, a table has no columns left


class _Trimmed:
    """A text stream without spaces at the ends of lines, where rich fills its columns up."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream
        self.encoding = str(getattr(stream, "encoding", None) or "utf-8")

    def write(self, text: str) -> int:
        return self.stream.write(_TRAILING.sub("", text))

    def flush(self) -> None:
        self.stream.flush()

    def isatty(self) -> bool:
        return self.stream.isatty()


class _Spelled:
    """A text stream that spells out what its encoding lacks."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream
        self.encoding = str(getattr(stream, "encoding", None) or "ascii")

    def write(self, text: str) -> int:
        known = text.translate(_PLAIN).encode(self.encoding, "replace").decode(self.encoding)
        return self.stream.write(known)

    def flush(self) -> None:
        self.stream.flush()

    def isatty(self) -> bool:
        return self.stream.isatty()


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would exit with 1, which says "it does not fit"."""
        raise BrokenPipeError


def make_console(stream: IO[str] | None = None) -> Console:
    """A console that takes no text for markup. Colours, width: rich's rules (NO_COLOR, COLUMNS)."""
    out: Any = stream or sys.stdout
    encoding = (getattr(out, "encoding", None) or "utf-8").lower().replace("-", "")
    if not encoding.startswith("utf"):
        out = _Spelled(out)
    tty = out.isatty()
    width = None if tty or "COLUMNS" in os.environ else PIPE_WIDTH
    if not tty:
        out = _Trimmed(out)
    console = _Console(file=out, markup=False, highlight=False, emoji=False, width=width)
    console.width = max(console.width, MIN_WIDTH)
    return console


def line(console: Console, text: str, style: str = "", indent: int = 0) -> None:
    """One paragraph, wrapped at the console's width, every line of it indented."""
    paragraph = Text(units.printable(text), style)
    console.print(Padding(paragraph, (0, 0, 0, indent), expand=False) if indent else paragraph)


def verbatim(console: Console, text: str, style: str = "", indent: int = 0) -> None:
    """A line to copy: whole, however narrow the console; a terminal breaks it where it ends."""
    console.print(Text(" " * indent + units.printable(text), style), soft_wrap=True)


def heading(console: Console, text: str) -> None:
    console.print()
    line(console, text, "bold")


def columns(console: Console, *names: str, left: int = 1) -> Table:
    """A table whose first `left` columns are text and whose others are numbers."""
    table = Table(
        box=box.SIMPLE_HEAD if console.is_terminal else None,
        pad_edge=False,
        # With a box its divider is one more space.
        padding=(0, 1, 0, 0) if console.is_terminal else (0, 1),
        show_edge=False,
        header_style="dim",
    )
    for i, name in enumerate(names):
        text = i < left
        table.add_column(
            cell(name),
            justify="left" if text else "right",
            no_wrap=True,
        )
    return table


def put(console: Console, table: Table, drop: Sequence[int] = ()) -> None:
    """Print a table, no word of which is broken.

    Where the width is too small the columns move together, those at the indices `drop` go, in that
    order, then cells wrap at their spaces, texts before numbers. What is wider still (a name longer
    than the console) is left to the terminal to wrap.
    """
    room = console.width
    if _width(console, table) > room:
        table.padding = (0, 1, 0, 0)
    going = [table.columns[i] for i in drop]
    while going and _width(console, table) > room:
        table.columns.remove(going.pop(0))
    for text in (True, False):
        for column in table.columns:
            if (column.justify == "left") is text:
                _narrow(column, _width(console, table) - room)
    console.width = max(room, _width(console, table))
    console.print(table)
    console.width = room


def _width(console: Console, table: Table) -> int:
    """Measured without a limit: a measurement never says more than the width it is given."""
    return Measurement.get(console, console.options.update(width=1 << 20), table).maximum


def _narrow(column: Column, excess: int) -> None:
    """Take up to `excess` cells from a column, no more than leaves each of its words whole."""
    texts = [str(column.header), *map(str, column.cells)]
    widest = max(map(cell_len, texts), default=0)
    words = max((cell_len(word) for text in texts for word in _WORD.findall(text)), default=0)
    if excess > 0 and words < widest:
        column.no_wrap = False
        column.width = max(words, widest - excess)


def bar(fraction: float, width: int, style: str) -> Text:
    """A bar of `width` characters at most, in eighths of one."""
    eighths = round(max(0.0, min(1.0, fraction)) * width * 8)
    full, rest = divmod(eighths, 8)
    return Text("█" * full + ("", *"▏▎▍▌▋▊▉")[rest], style)


def cell(text: str, style: str = "") -> Text:
    return Text(units.printable(text), style)
