"""What one rendering of a chat template may use: steps, characters, seconds of the processor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MappingView, Set
from itertools import chain
from time import thread_time
from typing import Any

from jinja2.exceptions import SecurityError

# A conversation of 1,000 messages takes some 50,000 steps, a million where each message looks
# through all the others (gpt-oss's template does).
MAX_STEPS = 4_000_000
MAX_TEXT = 64 << 20  # characters made in all; a context of a million tokens has about 4 million
MAX_VALUE = 16 << 20  # of one text, the finished one too
MAX_SECONDS = 5  # templates in use take milliseconds
MAX_DEPTH = 100  # of lists and dicts in one another

# What a short text takes beside its characters, in characters.
TEXT_COST = 16
# Steps between two looks at the clock, which take 0.5 microseconds each.
_LOOK = 16
# A text up to here is compared with the elements of a list in no more than a step each.
_SHORT = 1000


def is_container(value: Any) -> bool:
    return isinstance(value, list | tuple | Mapping | Set | MappingView)


def is_iterator(value: Any) -> bool:
    """Something that is gone through once and has no length, as map and select give."""
    return hasattr(value, "__next__") and hasattr(value, "__iter__")


class Budget:
    """Every method that takes from it raises SecurityError when too little is left."""

    def __init__(self) -> None:
        self.steps = 0
        self.text = 0
        self._known: dict[int, tuple[Any, int, int]] = {}  # id -> the value, its weight and depth
        self._look = 0
        self._end = thread_time() + MAX_SECONDS

    def step(self, count: int = 1) -> None:
        self.steps += count
        if self.steps > MAX_STEPS:
            raise SecurityError(f"more than {MAX_STEPS:,} rounds of loops, calls and elements")
        self._look += 1
        if self._look % _LOOK == 0 and thread_time() > self._end:
            raise SecurityError(f"more than {MAX_SECONDS} seconds of computing")

    def characters(self, count: int) -> None:
        """Text that has been made, or that is gone through."""
        self.check(count)
        self.text += count
        if self.text > MAX_TEXT:
            raise SecurityError(f"more than {MAX_TEXT:,} characters of text in all")

    @staticmethod
    def check(count: int) -> None:
        """Text that is about to be made."""
        if count > MAX_VALUE:
            raise SecurityError(f"a text of more than {MAX_VALUE:,} characters")

    @staticmethod
    def check_elements(count: int) -> None:
        if count > MAX_STEPS:
            raise SecurityError(f"a list of more than {MAX_STEPS:,} elements")

    def weigh(self, value: Any) -> int:
        """Characters of a value as text, about; an element that stands in it twice counts twice.

        Templates cannot change lists and dicts, so each is gone through once: what refers to
        itself forty times over is found to be too large in forty steps.
        """
        if isinstance(value, str):
            return len(value)
        return self._weigh(value)[0] if is_container(value) else _scalar(value)

    def _weigh(self, value: Any) -> tuple[int, int]:
        found = self._known.get(id(value))
        if found is not None:
            return found[1:]
        parts: Iterable[Any] = value
        if isinstance(value, Mapping):
            parts = chain(value.keys(), value.values())
        weight, depth = 2, 0
        for part in parts:
            if isinstance(part, str):
                weight += TEXT_COST + len(part)
            elif is_container(part):
                inner, below = self._weigh(part)
                weight += inner
                depth = max(depth, below)
            else:
                weight += _scalar(part)
        if depth >= MAX_DEPTH:
            raise SecurityError(f"lists within lists, {MAX_DEPTH} deep")
        self._known[id(value)] = (value, weight, depth + 1)
        return weight, depth + 1

    def walk(self, value: Any) -> None:
        """A list or dict is printed, hashed or gone through to its depths; others are free."""
        if is_container(value):
            weight = self.weigh(value)
            self.check(4 * weight)  # a character may be printed as four: \x00
            self.characters(weight)

    def compare(self, left: Any, right: Any, *, inside: bool) -> None:
        """`left` with `right`, or with what is `inside` it."""
        if inside and (isinstance(right, range) or is_container(right)):
            if is_container(left) or (isinstance(left, str) and len(left) > _SHORT):
                self.walk(left)
                self.walk(right)
            elif not isinstance(right, Mapping | Set):
                self.step(len(right))
        elif is_container(left) and is_container(right):
            self.walk(left)
            self.walk(right)


def _scalar(value: Any) -> int:
    if isinstance(value, int):
        return 8 + value.bit_length() // 3
    return 8 * len(value) if isinstance(value, range) else 24
