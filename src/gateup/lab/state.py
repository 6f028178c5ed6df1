"""A page's state as query parameters of its URL: reload, share and "back" give the same view.

Each page declares its parameters once. A value that is missing or cannot be is the default: a URL
is typed by hand, and shared between versions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlencode

MAX_TEXT = 200


class Param(Protocol):
    """One query parameter: its name, its value when it is absent, and how it is written."""

    @property
    def name(self) -> str: ...
    @property
    def default(self) -> Any: ...
    def read(self, text: str) -> Any: ...
    def write(self, value: Any) -> str: ...


@dataclass(frozen=True, slots=True)
class Number:
    """A number from low to high; what lies outside is moved to the nearest bound."""

    name: str
    default: float
    low: float
    high: float
    step: float = 1.0

    @property
    def whole(self) -> bool:
        return float(self.step).is_integer() and float(self.low).is_integer()

    def read(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            return self.default
        if not math.isfinite(value):
            return self.default
        value = min(max(value, self.low), self.high)
        return int(value) if self.whole else value

    def write(self, value: Any) -> str:
        return f"{float(value):.10g}"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of `options`; with `free`, any short text is taken (what it means is decided later)."""

    name: str
    default: str
    options: Sequence[str] = ()
    free: bool = False

    def read(self, text: str) -> str:
        if self.free:
            return text if text.isprintable() and len(text) <= MAX_TEXT else self.default
        return text if text in self.options else self.default

    def write(self, value: Any) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Several:
    """Some of `options`, at least one, in the order of `options`."""

    name: str
    default: tuple[str, ...]
    options: Sequence[str]

    def read(self, text: str) -> tuple[str, ...]:
        asked = text.split(",")
        return tuple(o for o in self.options if o in asked) or self.default

    def write(self, value: Any) -> str:
        return ",".join(o for o in self.options if o in value)


@dataclass(frozen=True, slots=True)
class Flag:
    """On or off: 1 or 0."""

    name: str
    default: bool

    def read(self, text: str) -> bool:
        return text == "1" if text in ("0", "1") else self.default

    def write(self, value: Any) -> str:
        return "1" if value else "0"


@dataclass(frozen=True, slots=True)
class Text:
    """A text as typed. What is too long is taken up to `room`, so that the page can say so.

    Characters are not judged here: what the page shows as typed it must also have been given.
    """

    name: str
    default: str
    room: int = 4 * MAX_TEXT

    def read(self, text: str) -> str:
        return text[: self.room]

    def write(self, value: Any) -> str:
        return str(value)


@dataclass
class State:
    """The values of a page's parameters."""

    params: Sequence[Param]
    values: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, params: Sequence[Param], query: Mapping[str, str]) -> State:
        state = cls(params)
        state.read(query)
        return state

    def read(self, query: Mapping[str, str]) -> None:
        """Take every parameter from `query`; absent ones get their default."""
        for p in self.params:
            self.values[p.name] = p.read(query[p.name]) if p.name in query else p.default

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def put(self, name: str, value: Any) -> bool:
        """Set one parameter; whether it changed. What cannot be becomes its default."""
        param = self.param(name)
        value = param.read(param.write(value))
        changed = bool(value != self.values[name])
        self.values[name] = value
        return changed

    def param(self, name: str) -> Any:
        return next(p for p in self.params if p.name == name)

    def query(self, extra: Mapping[str, str] | None = None) -> str:
        """What differs from the defaults, as "?a=1&b=2"; "" where nothing does."""
        pairs = {
            p.name: p.write(self.values[p.name])
            for p in self.params
            if self.values[p.name] != p.default
        }
        # Half a surrogate pair has no UTF-8: "?" in the URL, where the page refuses the text.
        text = urlencode({**pairs, **(extra or {})}, safe=",:/", errors="replace")
        return f"?{text}" if text else ""
