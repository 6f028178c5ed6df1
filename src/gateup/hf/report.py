"""What was patched and what was left, for people and for programs."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from gateup.ops.options import MLPOptions


@dataclass(frozen=True, slots=True)
class Patched:
    """One module that now runs gateup's ops. layout and act in words, as declared for `cls`."""

    name: str
    cls: str
    act: str
    layout: str

    def __str__(self) -> str:
        return f"{self.cls} ({self.act}, {self.layout})"


@dataclass(frozen=True, slots=True)
class Left:
    """One module that looks like an MLP and runs as before, and why."""

    name: str
    cls: str
    why: str

    def __str__(self) -> str:
        return f"{self.cls}: {self.why}"


@dataclass(frozen=True, slots=True)
class PatchReport:
    """The modules by name, in the model's order; `str()` is the summary that `patch` prints."""

    patched: tuple[Patched, ...]
    left: tuple[Left, ...]
    options: MLPOptions

    def __str__(self) -> str:
        lines = [f"gateup: patched {len(self.patched)} ({_said(self.options)})"]
        lines += summary(self.patched)
        if self.left:
            lines.append(f"gateup: left {len(self.left)} as they were")
            lines += summary(self.left)
        return "\n".join(lines)


def summary(entries: tuple[Patched, ...] | tuple[Left, ...]) -> list[str]:
    """A line for each kind of entry and place: layer numbers become a star."""
    counts = Counter((re.sub(r"(?<=\.)\d+(?=\.|$)", "*", e.name), str(e)) for e in entries)
    return [
        f"  {n:4} × {name or '(the model itself)'}: {what}" for (name, what), n in counts.items()
    ]


def _said(options: MLPOptions) -> str:
    text = f"rounding {options.rounding}, save {options.save}"
    if options.tile is not None:
        text += f", tile {options.tile} tokens"
    if options.budget is not None:
        text += f", budget {options.budget} bytes"
    return text
