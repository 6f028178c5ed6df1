"""Safetensors headers: one file, or shards under an index. Tensor data is never read.

A file is: N (8 bytes, little-endian), N bytes of JSON, the data. The JSON gives each tensor's
dtype, shape and its begin and end in the data; together the tensors cover the data exactly.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from gateup.errors import HeaderError, InputError, TruncatedError
from gateup.files.config_json import parse_json, read_json
from gateup.files.header import TensorHeader, clip, listed, many, new_header
from gateup.files.mismatch import Mismatch, sentences
from gateup.files.opening import open_regular, refuse_foreign
from gateup.model.quant.formats import FORMATS

# The safetensors library's own cap.
MAX_HEADER_BYTES = 100_000_000
# DeepSeek-V3's index has 8.9 MB.
MAX_INDEX_BYTES = 64 << 20
MAX_SHARDS = 10_000
# What the library counts elements in.
MAX_ELEMENTS = (1 << 64) - 1

# safetensors dtype -> key of FORMATS
DTYPES: Mapping[str, str] = {
    "F64": "f64",
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "F8_E4M3": "f8_e4m3",
    "F8_E5M2": "f8_e5m2",
    "F8_E8M0": "f8_e8m0",
    "F8_E4M3FNUZ": "f8_e4m3fnuz",
    "F8_E5M2FNUZ": "f8_e5m2fnuz",
    "F6_E2M3": "f6_e2m3",
    "F6_E3M2": "f6_e3m2",
    "F4": "f4",
    "C64": "c64",
    "I64": "i64",
    "I32": "i32",
    "I16": "i16",
    "I8": "i8",
    "U64": "u64",
    "U32": "u32",
    "U16": "u16",
    "U8": "u8",
    "BOOL": "bool",
}

_AGAIN = "fetch the file again; the download did not finish"

_STORED = {
    name: (key, FORMATS[key].block_size, FORMATS[key].block_bytes) for name, key in DTYPES.items()
}


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """One file's header: its tensors in the order of their data, and `__metadata__`."""

    path: Path
    size: int
    tensors: tuple[TensorHeader, ...]
    metadata: Mapping[str, str]


def read_safetensors(path: Path) -> SafetensorsFile:
    """The header of one .safetensors file, checked whole. Raises InputError, HeaderError."""
    handle, size = open_regular(path)
    with handle:
        start = handle.read(32)
        if len(start) < 8:
            raise _truncated(path, f"it has {size} bytes")
        (length,) = struct.unpack_from("<Q", start)
        if length > min(MAX_HEADER_BYTES, size - 8):
            refuse_foreign(path, start)
        if length > MAX_HEADER_BYTES:
            raise HeaderError(
                f"the header claims {length:,} bytes",
                where=f"{path}, bytes 0 to 8",
                expected=f"at most {MAX_HEADER_BYTES:,}, the format's own limit",
            )
        if length > size - 8:
            raise _truncated(path, f"the header takes {length:,} bytes, {size - 8:,} are there")
        handle.seek(8)
        data = handle.read(length)
    if len(data) < length:
        raise _truncated(path, "it shrank while it was read")
    header = parse_json(data, f"{path}, header", error=HeaderError)
    del data
    if not isinstance(header, dict):
        raise HeaderError("the header is not a JSON object", where=str(path))
    metadata = _metadata(header.pop("__metadata__", None), path)
    tensors = _tensors(header, path, 8 + length, size)
    return SafetensorsFile(path, size, tensors, metadata)


def _truncated(path: Path, how: str) -> HeaderError:
    return HeaderError(
        f"{path.name} is truncated: {how}",
        where=str(path),
        remedy=_AGAIN,
    )


def _metadata(value: object, path: Path) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise HeaderError(
            "the header's __metadata__ is not a map of strings",
            where=f"{path}, __metadata__",
            expected="an object whose values are strings",
        )
    return value


def _tensors(
    header: dict[str, Any], path: Path, data_start: int, size: int
) -> tuple[TensorHeader, ...]:
    """Every entry checked, in the order of the data, which they must cover without a gap."""
    found = []
    # Most tensors share a few shapes: worked out once, kept once.
    extents: dict[tuple[str, tuple[int, ...]], tuple[str, tuple[int, ...], int]] = {}
    at = data_start
    in_order = True
    for name, entry in header.items():
        try:
            dtype, shape, (begin, end) = (
                entry["dtype"],
                tuple(entry["shape"]),
                entry["data_offsets"],
            )
            if type(begin) is not int or type(end) is not int or type(entry) is not dict:
                raise TypeError
            for d in shape:
                if type(d) is not int:  # True == 1 would find the other's entry below
                    raise TypeError
            known = extents.get((dtype, shape))
        except (KeyError, TypeError, ValueError, IndexError):
            raise _malformed(path, name, entry) from None
        if known is None:
            known = extents[dtype, shape] = _extent(path, name, dtype, shape)
        stored, shape, nbytes = known
        if end - begin != nbytes or not 0 <= begin <= end <= MAX_ELEMENTS:
            raise _bad_offsets(path, name, (begin, end), nbytes)
        offset = begin + data_start
        if offset != at:
            in_order = False
        at = offset + nbytes
        found.append(new_header((name, None, stored, shape, offset, nbytes, path)))
    if not in_order:
        found.sort(key=itemgetter(4, 5))  # offset, nbytes: empty tensors first
        at = _check_cover(found, path, data_start)
    if at > size:
        raise TruncatedError(
            f"{path.name} is truncated: its tensors end at byte {at:,}, the file at {size:,}",
            where=str(path),
            remedy=_AGAIN,
            have=size,
            need=at,
            tensors=len(found),
            cut=tuple(t.name for t in found if t.offset + t.nbytes > size),
        )
    if at < size:
        raise HeaderError(
            f"{path.name} has {many(size - at, 'byte')} after its last tensor",
            where=str(path),
            expected=f"a file of {at:,} bytes",
            remedy="fetch the file again",
        )
    return tuple(found)


def _check_cover(found: list[TensorHeader], path: Path, data_start: int) -> int:
    """Where the data ends; HeaderError at the first overlap or hole."""
    at = data_start
    previous = "the header"
    for tensor in found:
        if tensor.offset != at:
            raise _fault(
                path,
                tensor.name,
                f"it {'overlaps' if tensor.offset < at else 'leaves a hole after'} {previous}: "
                f"it begins at {tensor.offset - data_start:,}, the data before it ends at "
                f"{at - data_start:,}",
                "tensors that cover the data without overlap or hole",
            )
        at += tensor.nbytes
        previous = clip(tensor.name)
    return at


def _extent(
    path: Path, name: str, dtype: str, shape: tuple[int, ...]
) -> tuple[str, tuple[int, ...], int]:
    """(key of FORMATS, shape, bytes)."""
    if dtype not in _STORED:
        raise _fault(path, name, f"dtype is {clip(dtype)}", "one of " + ", ".join(DTYPES))
    stored, block, block_bytes = _STORED[dtype]
    elements = 1
    for d in shape:
        if d < 0:
            raise _fault(path, name, f"shape holds {clip(d)}", "whole numbers, 0 or more")
        elements *= d
        if elements > MAX_ELEMENTS:
            raise _fault(path, name, "shape overflows 64 bits", "a product below 2^64")
    blocks, rest = divmod(elements, block)
    if rest:
        raise _fault(
            path, name, f"{elements:,} elements of {dtype} end inside a byte", "whole bytes"
        )
    return stored, shape, blocks * block_bytes


def _malformed(path: Path, name: str, entry: object) -> HeaderError:
    """What is wrong with an entry that is not dtype, shape and two offsets."""
    if type(entry) is not dict:
        return _fault(path, name, f"the entry is {clip(entry)}", "dtype, shape, data_offsets")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str):
        return _fault(path, name, f"dtype is {clip(dtype)}", "one of " + ", ".join(DTYPES))
    if type(shape) is not list or any(type(d) is not int for d in shape):
        return _fault(path, name, f"shape is {clip(shape)}", "a list of whole numbers")
    return _fault(path, name, f"data_offsets is {clip(offsets)}", "two whole numbers")


def _bad_offsets(path: Path, name: str, span: tuple[int, int], nbytes: int) -> HeaderError:
    begin, end = span
    if not 0 <= begin <= end <= MAX_ELEMENTS:
        return _fault(path, name, f"data_offsets is {clip(list(span))}", "0 <= begin <= end < 2^64")
    return _fault(
        path,
        name,
        f"data_offsets span {end - begin:,} bytes",
        f"{nbytes:,}, which its shape and dtype take",
    )


def _fault(path: Path, name: str, what: str, expected: str) -> HeaderError:
    return HeaderError(what, where=f"{path}, tensor {clip(name)}", expected=expected)


@dataclass(frozen=True, slots=True)
class ShardedFiles:
    """All shards under one index, and what the index says that the shards do not bear out.

    metadata  the index's own: total_size, total_parameters
    """

    files: tuple[SafetensorsFile, ...]
    mismatches: tuple[Mismatch, ...]
    metadata: Mapping[str, Any]

    @property
    def problems(self) -> tuple[str, ...]:
        return sentences(self.mismatches)


def read_index(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """(weight_map: tensor name -> shard file name, metadata). Raises InputError, HeaderError."""
    index = read_json(path, max_bytes=MAX_INDEX_BYTES)
    metadata = index.get("metadata")
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise HeaderError(
            f"weight_map is {clip(weight_map) if weight_map is not None else 'missing'}",
            where=f"{path}, field weight_map",
            expected="an object from tensor name to shard file name",
        )
    checked: dict[str, str] = {}
    for name, shard in weight_map.items():
        if isinstance(shard, str) and shard in checked:
            weight_map[name] = checked[shard]  # one string per shard, not one per tensor
            continue
        if not isinstance(shard, str) or not _plain_name(shard):
            raise HeaderError(
                f"the shard of {clip(name)} is {clip(shard)}",
                where=f"{path}, field weight_map",
                expected="the name of a .safetensors file in the same folder",
            )
        checked[shard] = shard
    if len(checked) > MAX_SHARDS:
        raise HeaderError(
            f"the index names {len(checked):,} shards",
            where=f"{path}, field weight_map",
            expected=f"at most {MAX_SHARDS:,}",
        )
    return weight_map, metadata if isinstance(metadata, dict) else {}


def _plain_name(shard: str) -> bool:
    """A file of the same folder, nothing that could lead out of it."""
    return (
        shard.endswith(".safetensors")
        and len(shard) <= 255
        and shard.isprintable()
        and not any(c in shard for c in "/\\:")
        and not shard.startswith(".")
    )


def read_sharded(index: Path) -> ShardedFiles:
    """All shards that an index names. Raises InputError, HeaderError.

    Refused: absent shards, a tensor in two shards, a tensor of the index that no shard has.
    """
    weight_map, metadata = read_index(index)
    shards = sorted(set(weight_map.values()))
    absent = [s for s in shards if not (index.parent / s).is_file()]
    if absent:
        raise InputError(
            f"{len(absent)} of {len(shards)} shards are not there: {listed(absent)}",
            where=str(index),
            remedy="fetch them, or open config.json itself to plan without the weights",
        )
    files = []
    home: dict[str, str] = {}
    misplaced: list[str] = []
    unlisted: list[str] = []
    for shard in shards:
        file = read_safetensors(index.parent / shard)
        files.append(file)
        for tensor in file.tensors:
            name = tensor.name
            if name in home:
                raise HeaderError(
                    f"tensor {clip(name)} is in two shards: {home[name]} and {shard}",
                    where=str(index),
                    remedy="remove the shard of the other upload, or write the model again with "
                    "save_pretrained",
                )
            home[name] = shard
            said = weight_map.pop(name, None)
            if said is None:
                unlisted.append(name)
            elif said != shard:
                misplaced.append(name)
    if weight_map:
        raise HeaderError(
            f"{many(len(weight_map), 'tensor')} of the index in no shard: {listed([*weight_map])}",
            where=str(index),
            remedy="fetch index and shards of the same revision",
        )
    mismatches = []
    if unlisted:
        sentence = (
            f"{many(len(unlisted), 'tensor')} of the shards not in {index.name}: {listed(unlisted)}"
        )
        mismatches.append(Mismatch("unlisted", sentence, names=tuple(unlisted)))
    if misplaced:
        sentence = f"{many(len(misplaced), 'tensor')} in another shard than {index.name} says"
        mismatches.append(Mismatch("misplaced", sentence, names=tuple(misplaced)))
    return ShardedFiles(tuple(files), tuple(mismatches), metadata)
