"""GGUF models cut into several files: all parts, found from any of them and checked together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateup.errors import HeaderError, InputError
from gateup.files.gguf import GGUFFile, read_gguf
from gateup.files.header import clip, listed

SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def split_paths(path: Path, metadata: Mapping[str, Any]) -> list[Path]:
    """All files of the split set that a shard belongs to, in order; [path] for a whole file.

    Raises InputError (missing shards, by name), HeaderError.
    """
    count = metadata.get("split.count", 0)
    if not isinstance(count, int) or not 0 <= count <= 99_999:
        raise HeaderError(
            f"split.count is {clip(count)}",
            where=f"{path}, key 'split.count'",
            expected="a whole number from 0 to 99,999",
        )
    if count <= 1:
        return [path]
    match = SPLIT_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise HeaderError(
            f"{path.name} is one of {count} parts of a model, and its name does not say which",
            where=f"{path}, key 'split.count'",
            expected=f"the name llama-gguf-split gave it: …-00001-of-{count:05d}.gguf",
        )
    paths = [
        path.with_name(f"{match['stem']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)
    ]
    absent = [p.name for p in paths if not p.is_file()]
    if absent:
        raise InputError(
            f"{len(absent)} of {count} parts are not there: {listed(absent)}",
            where=str(path.parent),
            remedy="fetch all parts into one folder",
        )
    return paths


def read_gguf_set(path: Path) -> tuple[GGUFFile, ...]:
    """The whole model that a file belongs to; the first file's metadata describes it.

    Raises InputError, HeaderError.
    """
    opened = read_gguf(path)
    paths = split_paths(path, opened.metadata)
    files = tuple(opened if p == path else read_gguf(p) for p in paths)
    if len(files) == 1:
        return files
    home: dict[str, str] = {}
    for no, file in enumerate(files):
        where = f"{file.path}, key 'split.no'"
        if file.metadata.get("split.no") != no or file.metadata.get("split.count") != len(files):
            raise HeaderError(
                f"{file.path.name} says it is part {clip(file.metadata.get('split.no'))} of "
                f"{clip(file.metadata.get('split.count'))}",
                where=where,
                expected=f"part {no} of {len(files)} (counted from 0), as its name says",
            )
        for tensor in file.tensors:
            if tensor.name in home:
                raise HeaderError(
                    f"tensor {clip(tensor.name)} is in two parts: {home[tensor.name]} and "
                    f"{file.path.name}",
                    where=str(file.path),
                )
            home[tensor.name] = file.path.name
    total = files[0].metadata.get("split.tensors.count", len(home))
    if total != len(home):
        raise HeaderError(
            f"the parts hold {len(home):,} tensors, split.tensors.count says {clip(total)}",
            where=f"{files[0].path}, key 'split.tensors.count'",
            remedy="fetch all parts of the same upload",
        )
    return files
