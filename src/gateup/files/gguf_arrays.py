"""Arrays of a GGUF's metadata that reading the header steps over: the vocabulary, mostly."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from typing import Any

from gateup.errors import HeaderError
from gateup.files.gguf import SCALARS, Skipped
from gateup.files.header import clip
from gateup.files.opening import open_regular

_CODES: Mapping[str, str] = {name: code for name, code, _ in SCALARS.values()}


def read_array(metadata: Mapping[str, Any], key: str) -> list[Any] | None:
    """The array under `key`, read from its file where the header left it out; None where absent.

    Strings that are not UTF-8 come with surrogates for the bytes at fault. Raises InputError,
    HeaderError (no array; a file that changed since its header was read).
    """
    value = metadata.get(key)
    if value is None or isinstance(value, list):
        return value
    if not isinstance(value, Skipped) or value.type == "text" or value.file is None:
        raise HeaderError(f"{key} is {clip(value)}", where=f"key {key}", expected="an array")
    handle, size = open_regular(value.file)
    with handle:
        try:
            with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as view:
                if value.type == "string":
                    return _strings(view, value)
                return list(
                    struct.unpack_from(f"<{value.length}{_CODES[value.type]}", view, value.offset)
                )
        except (struct.error, ValueError, OSError) as e:
            raise HeaderError(
                f"the array has not the {value.length:,} elements that it had: {e}",
                where=f"{value.file} ({size:,} bytes), key {key}",
                remedy="the file has changed while it was read: try again",
            ) from None


def _strings(view: mmap.mmap, array: Skipped) -> list[str]:
    out = []
    at = array.offset
    length_at = struct.Struct("<Q").unpack_from
    for _ in range(array.length):
        end = at + 8 + length_at(view, at)[0]
        if end > len(view):
            raise ValueError("a string leads out of the file")
        out.append(view[at + 8 : end].decode("utf-8", "surrogateescape"))
        at = end
    return out
