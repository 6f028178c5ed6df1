"""JSON from files, read strictly: bounded size and number of items, UTF-8, unique keys, finite."""

from __future__ import annotations

import codecs
import json
import math
from pathlib import Path
from typing import Any, NoReturn

from gateup.errors import ConfigError, InputError
from gateup.files.header import clip
from gateup.files.opening import foreign, read_bounded

# Real config.json files stay under 300 kB (long lists of modules left unquantised).
MAX_CONFIG_BYTES = 4 << 20
# Commas, colons and opening brackets bound how many objects the parser can make, so that a file
# of "{},{},…" cannot turn 100 MB into gigabytes. A header of 91,000 tensors has 1.0 million.
MAX_ITEMS = 3_000_000


class _DuplicateKeyError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(f"the key {clip(key)} occurs twice in one object")
            seen.add(key)
    return out


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_constant, parse_float=_finite
)
# With NaN, Infinity and -Infinity, which Python's json writes and the standard does not have.
_LENIENT = json.JSONDecoder(object_pairs_hook=_unique)


def parse_json(
    data: bytes,
    where: str,
    *,
    error: type[InputError] = ConfigError,
    max_items: int = MAX_ITEMS,
    finite: bool = True,
) -> Any:
    """The value that `data` spells, under strict JSON (finite=False: and Python's NaN, Infinity).

    Raises `error`, naming `where`.
    """
    items = 0
    if len(data) > max_items:  # an item has a byte at least
        items = sum(data.count(c) for c in (b",", b":", b"{", b"["))
    if items > max_items:
        raise error(
            f"the JSON has about {items:,} items", where=where, expected=f"at most {max_items:,}"
        )
    try:
        text = data.decode("utf-8")
        value = (_DECODER if finite else _LENIENT).decode(text)
        if b"\\u" in data:  # half of a surrogate pair could be neither printed nor written
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except UnicodeDecodeError as e:
        raise error(f"the text is not UTF-8: byte {e.start} is wrong", where=where) from None
    except UnicodeEncodeError:
        raise error("a string holds half of a surrogate pair", where=where) from None
    except RecursionError:
        raise error("the JSON is nested too deeply", where=where) from None
    except json.JSONDecodeError as e:
        raise error(
            f"not JSON: {e.msg}", where=f"{where}, line {e.lineno}, column {e.colno}"
        ) from None
    except ValueError as e:
        what = str(e)
        if what.startswith("Exceeds the limit"):
            what = "a whole number has thousands of digits"
        raise error(f"not JSON as the standard has it: {what}", where=where) from None


def read_json(
    path: Path, *, max_bytes: int = MAX_CONFIG_BYTES, finite: bool = True
) -> dict[str, Any]:
    """The JSON object in a file. Raises InputError (unreadable), ConfigError (not such a thing).

    finite  False: a log of numbers, in which NaN and Infinity may stand
    """
    data = read_bounded(path, max_bytes)
    found = foreign(data[:64])
    if found:
        raise ConfigError(f"{path.name} is {found[0]}", where=str(path), remedy=found[1])
    data = data.removeprefix(codecs.BOM_UTF8)  # as editors on Windows write it
    if not data.strip():
        raise ConfigError(f"{path.name} is empty", where=str(path), expected="a JSON object")
    value = parse_json(data, str(path), finite=finite)
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a string", type(None): "null"}.get(type(value), "a number")
        raise ConfigError(f"{path.name} is {kind}", where=str(path), expected="a JSON object")
    return value
