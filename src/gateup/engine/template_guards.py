"""What chat templates may use, and how much each would make, known before it makes it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from string import Formatter
from typing import Any

from jinja2.exceptions import SecurityError

from gateup.engine.template_budget import MAX_STEPS, Budget

_MAX_WIDTH = 999  # of a number in a format
_MAX_INDENT = 64
_MAX_DIGITS = 4300  # Python's own bound, since 3.11
# Line ends that str.splitlines knows ("\r\n" counts as two).
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_PERCENT = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d*)(?:\.(\*|\d*))?")


def before_percent(budget: Budget, form: str, values: Any) -> None:
    """`form % values`."""
    for found in _PERCENT.finditer(form):
        for width in found.groups():
            _width(width or "")
    budget.walk(values)
    places = form.count("%")
    budget.check(len(form) + places * (_MAX_WIDTH + 5 * budget.weigh(values)))


def _width(text: str) -> None:
    if "*" in text or "{" in text or any(len(n) > 3 for n in re.findall(r"\d+", text)):
        raise SecurityError(f"a format with the width {text[:20]!r}")


def _before_format(budget: Budget, form: str, values: Any) -> None:
    """`form.format(…)`."""
    places = 0
    for _, name, width, _ in Formatter().parse(form):
        places += name is not None
        _width(width or "")
    budget.check(len(form) + places * (_MAX_WIDTH + budget.weigh(values)))


def _before_replace(budget: Budget, text: str, old: str, new: str, count: int | None) -> None:
    found = text.count(old)
    if count is not None and count >= 0:
        found = min(found, count)
    budget.check(len(text) + found * (len(new) - len(old)))


def before_method(
    budget: Budget, value: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A method of `value` is about to be called; what to call it with."""
    for each in (*args, *kwargs.values()):
        budget.walk(each)
    if name == "join" and args:
        items = list(args[0])
        budget.step(len(items))
        budget.check(budget.weigh(items) + len(value) * len(items))
        return (items, *args[1:]), kwargs
    if name == "replace" and len(args) >= 2:
        count = args[2] if args[2:] else kwargs.get("count")
        _before_replace(budget, value, args[0], args[1], count)
    elif name in ("split", "rsplit"):
        sep = args[0] if args else kwargs.get("sep")
        most = args[1] if args[1:] else kwargs.get("maxsplit", -1)
        left = MAX_STEPS - budget.steps
        return (sep, left if most < 0 else min(most, left)), {}
    elif name == "splitlines":
        budget.step(sum(map(value.count, _LINE_ENDS)))
    elif name in ("center", "ljust", "rjust", "zfill") and args:
        budget.check(args[0])
    elif name == "expandtabs":
        size = args[0] if args else kwargs.get("tabsize", 8)
        budget.check(len(value) + value.count("\t") * size)
    elif name == "format":
        _before_format(budget, value, [*args, *kwargs.values()])
    return args, kwargs


# ---- filters: the arguments are those of Jinja's, after the value that they are applied to -------


def _format(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> None:
    before_percent(budget, str(value), kwargs or args)


def _indent(
    budget: Budget, s: Any, width: int | str = 4, first: bool = False, blank: bool = False
) -> None:
    by = len(width) if isinstance(width, str) else width
    lines = 1 + sum(map(str(s).count, _LINE_ENDS))
    budget.check(budget.weigh(s) + by * lines)


def _int(budget: Budget, value: Any, default: Any = 0, base: int = 10) -> None:
    if isinstance(value, str) and len(value) > _MAX_DIGITS:
        raise SecurityError(f"a number of {len(value):,} digits")


def _join(budget: Budget, value: Any, d: Any = "", attribute: Any = None) -> None:
    if hasattr(value, "__len__"):
        budget.check(budget.weigh(value) + len(str(d)) * len(value))


def _replace(budget: Budget, s: Any, old: Any, new: Any, count: int | None = None) -> None:
    _before_replace(budget, str(s), str(old), str(new), count)


def _round(budget: Budget, value: Any, precision: int = 0, method: str = "common") -> None:
    if abs(precision) > _MAX_INDENT:
        raise SecurityError(f"rounding to {precision:,} places")


def _sum(budget: Budget, iterable: Any, attribute: Any = None, start: Any = 0) -> None:
    if not isinstance(start, int | float):  # lists would be copied for each
        raise SecurityError("a sum of something else than numbers")


def tojson(
    budget: Budget,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: without Jinja's escaping of HTML characters."""
    budget.walk(value)
    by = len(indent) if isinstance(indent, str) else indent or 0
    if by > _MAX_INDENT or any(len(s) > _MAX_INDENT for s in separators or ()):
        raise SecurityError(f"JSON indented by {by:,}")
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    pieces, size = [], 0
    for piece in [encoder.encode(value)] if indent is None else encoder.iterencode(value):
        pieces.append(piece)
        size += len(piece)
        budget.check(size)
    return "".join(pieces)


Guard = Callable[..., None]

# Filters, each with what has to be looked at before it. Words, as the documents name them.
_FREE = """abs capitalize count d default dictsort e escape first float items last length list lower
map max min reject rejectattr reverse safe select selectattr sort string title tojson trim unique
upper"""
FILTERS: dict[str, Guard | None] = {
    **dict.fromkeys(_FREE.split()),
    "format": _format,
    "indent": _indent,
    "int": _int,
    "join": _join,
    "replace": _replace,
    "round": _round,
    "sum": _sum,
}

_STR = """capitalize casefold center count endswith expandtabs find format index isalnum isalpha
isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join
ljust lower lstrip partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit
rstrip split splitlines startswith strip swapcase title upper zfill"""
METHODS: dict[type, frozenset[str]] = {
    str: frozenset(_STR.split()),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    int: frozenset(),
    float: frozenset({"is_integer"}),
    range: frozenset({"count", "index", "start", "step", "stop"}),
}
