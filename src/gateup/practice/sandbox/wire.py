"""Values as bytes, between the judge and the learner's process. Nothing is ever unpickled.

A frame is a big-endian 32-bit length, that many bytes of JSON, and the arrays' raw bytes (C order,
little-endian) whose dtype (from a fixed list) and shape are in the JSON. The receiver computes
each array's size itself and refuses what does not add up before anything is allocated for it.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

HEADER_LIMIT = 1 << 20  # bytes of JSON in one frame
FRAME_LIMIT = 64 << 20  # bytes of arrays in one frame
DEPTH_LIMIT = 8  # containers in containers
DIGITS_LIMIT = 1000  # of one integer
# numpy counts an empty array's bytes as if its dimensions of 0 were 1: at most 2^63 of them.
SHAPE_LIMIT = 1 << 59
TEXT_LIMIT = 10_000  # characters of one string
DTYPES = (
    "bool",
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "bfloat16"),
)
LENGTH = struct.Struct(">I")


class WireError(ValueError):
    """A value that cannot be sent, or bytes that are no value."""


@dataclass(frozen=True)
class Array:
    """An array on the wire. `dtype` may be bfloat16, whose `values` are then uint16 bits."""

    values: Any
    dtype: str
    torch: bool = False
    requires_grad: bool = False

    def numpy(self) -> Any:
        """The values as numpy has them: bfloat16 as float32."""
        if self.dtype != "bfloat16":
            return self.values
        return (self.values.astype(np.uint32) << 16).view(np.float32)


def bfloat16_bits(values: Any) -> Any:
    """uint16 bits of float values rounded to bfloat16, to nearest even; NaN stays NaN."""
    wide = np.atleast_1d(np.asarray(values, dtype=np.float32)).view(np.uint32)
    rounded = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16
    nan = (wide & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, 0x7FC0, rounded).astype(np.uint16).reshape(np.shape(values))


def pack(message: dict[str, Any], value: Any = None) -> bytes:
    """`message` and the tree `value` as one frame. WireError where value cannot be sent."""
    arrays: list[bytes] = []
    header = json.dumps({**message, "value": _flatten(value, arrays, 0)}).encode()
    if len(header) > HEADER_LIMIT or sum(map(len, arrays)) > FRAME_LIMIT:
        raise WireError(f"an answer of more than {FRAME_LIMIT >> 20} MiB")
    return LENGTH.pack(len(header)) + header + b"".join(arrays)


def _flatten(value: Any, arrays: list[bytes], depth: int) -> Any:
    if depth > DEPTH_LIMIT:
        raise WireError(f"containers in containers, more than {DEPTH_LIMIT} deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value[:TEXT_LIMIT]
    if isinstance(value, int):
        return {"kind": "int", "value": _digits(value)}
    if isinstance(value, float) and not isinstance(value, np.generic):
        return {"kind": "float", "value": float(value).hex()}
    if isinstance(value, (tuple, list)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {"kind": kind, "items": [_flatten(v, arrays, depth + 1) for v in value]}
    if isinstance(value, dict):
        if not all(isinstance(key, (str, int)) for key in value):
            raise WireError("a dict whose keys are not strings or integers")
        items = [[key, _flatten(v, arrays, depth + 1)] for key, v in value.items()]
        return {"kind": "dict", "items": items}
    array = _as_array(value)
    arrays.append(np.ascontiguousarray(array.values).tobytes())
    return {
        "kind": "array",
        "dtype": array.dtype,
        "shape": list(np.shape(array.values)),
        "torch": array.torch,
        "grad": array.requires_grad,
    }


def _digits(value: int) -> str:
    if value.bit_length() > 3 * DIGITS_LIMIT:
        raise WireError(f"an integer of more than {3 * DIGITS_LIMIT} bits")
    return str(int(value))


def _as_array(value: Any) -> Array:
    if isinstance(value, Array):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        values = np.asarray(value)
        if values.dtype.name not in DTYPES:
            raise WireError(f"an array of dtype {values.dtype}")
        return Array(values, values.dtype.name)
    raise WireError(f"a {type(value).__name__}")


def unpack_header(data: bytes) -> tuple[dict[str, Any], int]:
    """The JSON of a frame, and how many bytes of arrays follow. WireError where it is not sound."""
    try:
        header = json.loads(data)
    except (ValueError, RecursionError):
        raise WireError("no JSON") from None
    if not isinstance(header, dict) or "value" not in header:
        raise WireError("no message")
    size = _size(header["value"], 0)
    if size > FRAME_LIMIT:
        raise WireError(f"an answer of more than {FRAME_LIMIT >> 20} MiB")
    return header, size


def _size(node: Any, depth: int) -> int:
    """Bytes of the arrays below this node; validates every node on the way."""
    if depth > DEPTH_LIMIT:
        raise WireError("too deep")
    if node is None or isinstance(node, (bool, str)):
        return 0
    if not isinstance(node, dict):
        raise WireError("no node")
    kind = node.get("kind")
    if kind in ("int", "float"):
        if not isinstance(node.get("value"), str) or len(node["value"]) > DIGITS_LIMIT:
            raise WireError("no number")
        return 0
    if kind == "array":
        return _array_size(node)
    items = node.get("items")
    if kind not in ("tuple", "list", "dict") or not isinstance(items, list):
        raise WireError("no container")
    if kind == "dict":
        if not all(
            isinstance(item, list) and len(item) == 2 and isinstance(item[0], (str, int))
            for item in items
        ):
            raise WireError("no dict")
        items = [item[1] for item in items]
    return sum(_size(item, depth + 1) for item in items)


def _array_size(node: dict[str, Any]) -> int:
    shape, dtype = node.get("shape"), node.get("dtype")
    if dtype not in DTYPES or not isinstance(shape, list) or len(shape) > 32:
        raise WireError("no array")
    if not all(type(n) is int and 0 <= n <= FRAME_LIMIT for n in shape):
        raise WireError("no shape")
    if math.prod(n or 1 for n in shape) > SHAPE_LIMIT:
        raise WireError("no shape")
    return math.prod(shape) * _stored(dtype).itemsize


def text(value: Any, limit: int = TEXT_LIMIT) -> str:
    """A string of a frame, cut, without the halves of characters that no encoding takes.

    "" for what is no string: its text may be deep, or longer than Python writes numbers.
    """
    return value[:limit].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _key(value: str | int) -> str | int:
    return text(value) if isinstance(value, str) else value


def _stored(dtype: str) -> np.dtype[Any]:
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def unpack_value(node: Any, data: bytes) -> Any:
    """The tree of a validated header's "value", with `Array`s as leaves, from the arrays' bytes."""
    value, used = _rebuild(node, memoryview(data))
    if used != len(data):
        raise WireError("bytes left over")
    return value


def _rebuild(node: Any, data: memoryview) -> tuple[Any, int]:
    if node is None or isinstance(node, bool):
        return node, 0
    if isinstance(node, str):
        return text(node), 0
    kind = node["kind"]
    if kind == "int" or kind == "float":
        try:
            return (int if kind == "int" else float.fromhex)(node["value"]), 0
        except (ValueError, OverflowError):
            raise WireError("no number") from None
    if kind == "array":
        size = _array_size(node)
        values = np.frombuffer(data[:size], dtype=_stored(node["dtype"])).reshape(node["shape"])
        torch, grad = node.get("torch") is True, node.get("grad") is True
        return Array(values, node["dtype"], torch, grad), size
    keys = [_key(item[0]) for item in node["items"]] if kind == "dict" else None
    used, below = 0, []
    for item in node["items"]:
        value, size = _rebuild(item if keys is None else item[1], data[used:])
        below.append(value)
        used += size
    if keys is not None:
        return dict(zip(keys, below, strict=True)), used
    return (below if kind == "list" else tuple(below)), used
