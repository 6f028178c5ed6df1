"""Patterns of module names: which modules they mean, and what was meant where they mean none."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from fnmatch import fnmatchcase

from gateup.errors import UsageError

SHOWN = 3


def patterns(include: str | Iterable[str] | None) -> tuple[str, ...]:
    """What `include` lists; empty for None. UsageError for an empty list or what is no name."""
    if include is None:
        return ()
    given = (include,) if isinstance(include, str) else include
    found = tuple(given) if isinstance(given, Iterable) else ()
    if not found or not all(isinstance(p, str) for p in found):
        raise UsageError(
            f"include is {include!r}", expected="a module's full name or several, with * and ?"
        )
    return found


def names(name: str, given: tuple[str, ...]) -> bool:
    """Whether one of the patterns is the whole of `name`; always, where there are none."""
    return not given or any(fnmatchcase(name, pattern) for pattern in given)


def refuse_unmatched(given: tuple[str, ...], there: list[str]) -> None:
    """UsageError for a pattern that names none of the MLPs that are there, with the nearest."""
    for pattern in given:
        if there and not any(fnmatchcase(name, pattern) for name in there):
            near = nearest(pattern, there)
            starred = " or ".join(sorted({f'"{_starred(name)}"' for name in near if name}))
            raise UsageError(
                f"include {pattern!r} is the name of none of the {len(there)} MLPs",
                where="the nearest: " + ", ".join(name or "(the model itself)" for name in near),
                expected="a module's full name, as named_modules() gives it; * stands for any"
                " characters, dots too, and ? for one",
                remedy=f"include={starred}" if starred else "leave include out",
            )


def nearest(pattern: str, there: list[str]) -> list[str]:
    """At most three of the names, the most alike first; names that hold it come before others."""
    core = pattern.strip("*?.")

    def distance(name: str) -> tuple[bool, float]:
        return core not in name, -SequenceMatcher(None, core, name).ratio()

    return sorted(there, key=distance)[:SHOWN]


def _starred(name: str) -> str:
    """A name with its layer numbers as stars."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)
