"""GGUF headers, v2 and v3: metadata and tensor table. Tensor data is never read.

A file is: "GGUF", version (u32), number of tensors and of metadata entries (u64 each), the
entries, the tensor table, then the data from the next multiple of `general.alignment`. All is
little-endian; a string is its length (u64) and its bytes.

The vocabulary is stepped over, not read: arrays of numbers by arithmetic, arrays of strings from
length to length.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateup.errors import HeaderError, InputError, TruncatedError
from gateup.files.header import TensorHeader, clip
from gateup.files.opening import open_regular, refuse_foreign
from gateup.model.quant.formats import FORMATS

# A vocabulary of 262,144 tokens with its merges and scores takes 12 MB.
MAX_HEADER_BYTES = 256 << 20
MAX_KEYS = 65_536
MAX_TENSORS = 65_536  # files of one tensor per expert have had 1,000; stacked, DeepSeek-V3 1,025
# Strings stepped over, all arrays together: 4 million take about 0.5 s. The largest vocabularies
# known have 262,208 tokens and 514,906 merges.
MAX_STRINGS = 1 << 22
MAX_KEY_BYTES = 65_535  # the format's own limit
MAX_NAME_BYTES = 1024  # ggml's is 64, 128 in builds for image models
MAX_TEXT_BYTES = 1 << 20  # longer strings are stepped over; chat templates stay under 30 kB
MAX_KEPT = 4096  # elements of an array that is kept
MAX_KEPT_BYTES = 64 << 10  # bytes of a string array that is kept
MAX_DEPTH = 4  # arrays in arrays
# All that is kept of one header: a byte of text counts 1, an element of an array 8.
MAX_KEPT_TOTAL = 32 << 20
MAX_DIMS = 4  # ggml's
MAX_ELEMENTS = (1 << 63) - 1  # what ggml counts elements in

# ggml's number of a tensor type -> key of FORMATS
TYPES: Mapping[int, str] = {
    0: "f32",
    1: "f16",
    2: "q4_0",
    3: "q4_1",
    6: "q5_0",
    7: "q5_1",
    8: "q8_0",
    9: "q8_1",
    10: "q2_k",
    11: "q3_k",
    12: "q4_k",
    13: "q5_k",
    14: "q6_k",
    15: "q8_k",
    16: "iq2_xxs",
    17: "iq2_xs",
    18: "iq3_xxs",
    19: "iq1_s",
    20: "iq4_nl",
    21: "iq3_s",
    22: "iq2_s",
    23: "iq4_xs",
    24: "i8",
    25: "i16",
    26: "i32",
    27: "i64",
    28: "f64",
    29: "iq1_m",
    30: "bf16",
    34: "tq1_0",
    35: "tq2_0",
    39: "mxfp4",
    40: "nvfp4",
    41: "q1_0",
}
# Numbers that ggml once used and gave up.
REMOVED = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

# Metadata value types: number -> (name, struct code, bytes)
SCALARS: Mapping[int, tuple[str, str, int]] = {
    0: ("u8", "B", 1),
    1: ("i8", "b", 1),
    2: ("u16", "H", 2),
    3: ("i16", "h", 2),
    4: ("u32", "I", 4),
    5: ("i32", "i", 4),
    6: ("f32", "f", 4),
    7: ("bool", "B", 1),
    10: ("u64", "Q", 8),
    11: ("i64", "q", 8),
    12: ("f64", "d", 8),
}
BOOL, STRING, ARRAY = 7, 8, 9

_U32 = struct.Struct("<I").unpack_from
_U64 = struct.Struct("<Q").unpack_from


@dataclass(frozen=True, slots=True)
class Skipped:
    """Stands for a value too large to keep: an array of `length` elements of `type`, or a string
    (type "text") of `length` bytes. Its content begins at byte `offset` of `file` (gguf_arrays.py
    reads it)."""

    type: str
    length: int
    offset: int = field(default=0, compare=False)
    file: Path | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """One file's header. `metadata` holds scalars, strings, lists and Skipped."""

    path: Path
    size: int
    version: int
    alignment: int
    data_start: int
    metadata: Mapping[str, Any]
    tensors: tuple[TensorHeader, ...]


def read_gguf(path: Path) -> GGUFFile:
    """The header of one .gguf file, checked whole. Raises InputError, HeaderError."""
    handle, size = open_regular(path)
    with handle:
        start = handle.read(32)
        version = _version(path, start, size)
        try:
            view = mmap.mmap(handle.fileno(), min(size, MAX_HEADER_BYTES), access=mmap.ACCESS_READ)
        except (OSError, ValueError) as e:
            raise InputError(f"{path.name} cannot be mapped: {e}", where=str(path)) from None
        with view:
            reader = _Reader(view, path, size)
            return reader.read(version)


def _version(path: Path, start: bytes, size: int) -> int:
    if start[:4] != b"GGUF":
        refuse_foreign(path, start)
        raise HeaderError(
            f"{path.name} is not a GGUF file: it begins with {start[:4]!r}",
            where=f"{path}, bytes 0 to 4",
            expected="b'GGUF'",
        )
    if size < 24:
        raise HeaderError(
            f"{path.name} is truncated: it has {size} bytes",
            where=str(path),
            remedy="fetch the file again; the download did not finish",
        )
    version: int = _U32(start, 4)[0]
    if version in (2, 3):
        return version
    if version == 1:
        what = "GGUF version 1, which counts in 32 bits"
        remedy = "convert the original model again with llama.cpp's convert_hf_to_gguf.py"
    elif version and not version & 0xFFFF:
        what = "a big-endian GGUF"
        remedy = "turn it round with `gguf-convert-endian FILE little` (pip install gguf)"
    else:
        what = f"GGUF version {version}"
        remedy = "update gateup if the format has moved on"
    raise HeaderError(
        f"{path.name} is {what}",
        where=f"{path}, bytes 4 to 8",
        expected="version 2 or 3, little-endian",
        remedy=remedy,
    )


class _Reader:
    """Walks a header. Every length is checked against the bytes left before it is believed."""

    def __init__(self, view: mmap.mmap, path: Path, size: int) -> None:
        self.view = view
        self.path = path
        self.size = size
        self.end = len(view)
        self.pos = 8
        self.at = "the counts"  # what is being read, for error messages
        self.strings_left = MAX_STRINGS
        self.kept_left = MAX_KEPT_TOTAL

    def fault(self, what: str, expected: str | None = None) -> HeaderError:
        return HeaderError(what, where=f"{self.path}, {self.at}", expected=expected)

    def truncated(self, need: int) -> HeaderError:
        if self.end < self.size:
            return self.fault("the header runs on", f"at most {MAX_HEADER_BYTES:,} bytes")
        return HeaderError(
            f"the header is truncated or corrupt: it needs {need:,} more bytes at byte "
            f"{self.pos:,}, the file has {self.size:,}",
            where=f"{self.path}, {self.at}",
            remedy="fetch the file again",
        )

    def take(self, n: int) -> int:
        """Move past `n` bytes; the position before them."""
        pos = self.pos
        if n > self.end - pos:
            raise self.truncated(n)
        self.pos = pos + n
        return pos

    def u32(self) -> int:
        value: int = _U32(self.view, self.take(4))[0]
        return value

    def u64(self) -> int:
        value: int = _U64(self.view, self.take(8))[0]
        return value

    def keep(self, cost: int) -> bool:
        """Whether there is room to keep so much more; if so it is taken."""
        if cost > self.kept_left:
            return False
        self.kept_left -= cost
        return True

    def text(self, limit: int) -> str | Skipped:
        """A string; one longer than `limit` bytes is stepped over."""
        length = self.u64()
        pos = self.take(length)
        if length > limit or not self.keep(length):
            return Skipped("text", length, pos, self.path)
        try:
            return self.view[pos : self.pos].decode("utf-8")
        except UnicodeDecodeError as e:
            raise self.fault(f"a string is not UTF-8 at byte {pos + e.start:,}") from None

    def name(self, kind: str, limit: int) -> str:
        """A key or a tensor's name."""
        found = self.text(limit)
        if isinstance(found, Skipped):
            raise self.fault(f"the {kind} has {found.length:,} bytes", f"at most {limit:,} bytes")
        if not found:
            raise self.fault(f"the {kind} is empty")
        return found

    def count(self, kind: str, cap: int, least: int) -> int:
        """A u64 that claims so many things of at least `least` bytes each."""
        n = self.u64()
        if n > cap:
            raise self.fault(f"the header claims {n:,} {kind}", f"at most {cap:,}")
        if n * least > self.end - self.pos:
            raise self.fault(
                f"the header claims {n:,} {kind}, the file has {self.size:,} bytes",
                f"at least {least} bytes for each",
            )
        return n

    def read(self, version: int) -> GGUFFile:
        tensors = self.count("tensors", MAX_TENSORS, 24)
        keys = self.count("metadata entries", MAX_KEYS, 13)
        metadata: dict[str, Any] = {}
        alignment = 32
        for i in range(keys):
            self.at = f"metadata entry {i + 1} of {keys}"
            key = self.name("key", MAX_KEY_BYTES)
            self.at = f"key {clip(key)}"
            if key in metadata:
                raise self.fault("the key occurs twice")
            kind = self.u32()
            metadata[key] = self.value(kind, 0)
            if key == "general.alignment":
                alignment = self.alignment(kind, metadata[key])
        table = self.tensor_table(tensors)
        data_start = -(-self.pos // alignment) * alignment
        return GGUFFile(
            self.path,
            self.size,
            version,
            alignment,
            data_start,
            metadata,
            self.place(table, data_start, alignment),
        )

    def alignment(self, kind: int, value: Any) -> int:
        if kind != 4 or value < 1 or value & (value - 1):
            raise self.fault(f"the alignment is {clip(value)}", "a power of two, as u32")
        return int(value)

    def value(self, kind: int, depth: int) -> Any:
        """A metadata value of type `kind`."""
        if kind == STRING:
            return self.text(MAX_TEXT_BYTES)
        if kind == ARRAY:
            return self.array(depth)
        scalar = SCALARS.get(kind)
        if scalar is None:
            raise self.fault(f"value type {kind} is not known", "0 to 12")
        _, code, width = scalar
        value = struct.unpack_from("<" + code, self.view, self.take(width))[0]
        return self.boolean(value) if kind == BOOL else value

    def boolean(self, value: int) -> bool:
        if value > 1:
            raise self.fault(f"a bool is {value}", "0 or 1")
        return bool(value)

    def array(self, depth: int) -> Any:
        """A small array as a list, a large one as Skipped."""
        kind = self.u32()
        if kind == STRING:
            n = self.count("strings", MAX_STRINGS, 8)
            return self.strings(n)
        if kind == ARRAY:
            n = self.count("arrays", MAX_KEPT, 12)
            if depth + 1 >= MAX_DEPTH or not self.keep(64 * n):
                raise self.fault(
                    "arrays hold too many arrays", f"at most {MAX_DEPTH} levels of them, and small"
                )
            return [self.array(depth + 1) for _ in range(n)]
        scalar = SCALARS.get(kind)
        if scalar is None:
            raise self.fault(f"array element type {kind} is not known", "0 to 12")
        name, code, width = scalar
        n = self.count("elements", self.end, width)
        pos = self.take(n * width)
        if n > MAX_KEPT or not self.keep(8 * n):
            return Skipped(name, n, pos, self.path)
        values = list(struct.unpack_from(f"<{n}{code}", self.view, pos))
        return [self.boolean(v) for v in values] if kind == BOOL else values

    def strings(self, n: int) -> list[str | Skipped] | Skipped:
        """An array of `n` strings; stepped over first, read only where it turns out small."""
        self.strings_left -= n
        if self.strings_left < 0:
            raise self.fault(f"{n:,} strings", f"at most {MAX_STRINGS:,} in all")
        view, start, pos, length_at = self.view, self.pos, self.pos, _U64
        try:
            for _ in range(n):
                pos += 8 + length_at(view, pos)[0]
        except (struct.error, OverflowError):  # a length that leads out of the file
            raise self.truncated(pos - self.pos) from None
        if pos > self.end:
            raise self.truncated(pos - self.pos)
        if n > MAX_KEPT or pos - start > MAX_KEPT_BYTES or not self.keep(64 * n):
            self.pos = pos
            return Skipped("string", n, start, self.path)
        return [self.text(MAX_TEXT_BYTES) for _ in range(n)]

    def tensor_table(self, n: int) -> list[TensorHeader]:
        """The table's entries, offsets still counted from the start of the data."""
        table = []
        seen: set[str] = set()
        for i in range(n):
            self.at = f"tensor {i + 1} of {n}"
            name = self.name("tensor's name", MAX_NAME_BYTES)
            self.at = f"tensor {clip(name)}"
            if name in seen:
                raise self.fault("two tensors have this name")
            seen.add(name)
            dims = self.u32()
            if dims > MAX_DIMS:
                raise self.fault(f"it has {dims:,} dimensions", f"at most {MAX_DIMS}")
            ne = struct.unpack_from(f"<{dims}Q", self.view, self.take(8 * dims))
            kind, nbytes = self.extent(self.u32(), ne)
            table.append(TensorHeader(name, None, kind, ne[::-1], self.u64(), nbytes, self.path))
        return table

    def extent(self, number: int, ne: tuple[int, ...]) -> tuple[str, int]:
        """(key of FORMATS, bytes) of a tensor of ggml's type `number` and dimensions `ne`."""
        kind = TYPES.get(number)
        if kind is None:
            if number in REMOVED:
                raise self.fault(
                    f"tensor type {number} ({REMOVED[number]}) was removed from llama.cpp",
                    "a file made by a llama.cpp of 2025 or later",
                )
            raise self.fault(f"tensor type {number} is not known", "a type of ggml's list")
        elements = 1
        for d in ne:
            elements *= d
            if d > MAX_ELEMENTS or elements > MAX_ELEMENTS:
                raise self.fault(f"dimensions {list(ne)} overflow", "fewer than 2^63 elements")
        fmt = FORMATS[kind]
        row = ne[0] if ne else 1
        if row % fmt.block_size:
            raise self.fault(
                f"its rows of {row:,} are not whole blocks of {kind}",
                f"a multiple of {fmt.block_size}",
            )
        return kind, elements // fmt.block_size * fmt.block_bytes

    def place(
        self, table: list[TensorHeader], data_start: int, alignment: int
    ) -> tuple[TensorHeader, ...]:
        """The tensors with offsets from the start of the file, in the order of the data."""
        table.sort(key=lambda t: (t.offset, t.nbytes))
        at = 0
        previous = ""
        for tensor in table:
            self.at = f"tensor {clip(tensor.name)}"
            if tensor.offset % alignment:
                raise self.fault(
                    f"its offset {tensor.offset:,} is not aligned", f"a multiple of {alignment}"
                )
            if tensor.offset < at:
                raise self.fault(f"it overlaps {clip(previous)}", f"an offset of {at:,} or more")
            at = tensor.offset + tensor.nbytes
            if data_start + at > self.size:
                raise self.cut_off(table, data_start)
            previous = tensor.name
        return tuple(t._replace(offset=t.offset + data_start) for t in table)

    def cut_off(self, table: list[TensorHeader], data_start: int) -> TruncatedError:
        """The error for a table, sorted by offset, that leads beyond the file's end."""
        ends = {t.name: data_start + t.offset + t.nbytes for t in table}
        cut = tuple(name for name, end in ends.items() if end > self.size)
        return TruncatedError(
            f"{self.path.name} is truncated: the tensor ends at byte {ends[cut[0]]:,}, the file "
            f"has {self.size:,}",
            where=f"{self.path}, tensor {clip(cut[0])}",
            remedy="fetch the file again; the download did not finish",
            have=self.size,
            need=max(ends.values()),
            tensors=len(table),
            cut=cut,
        )
