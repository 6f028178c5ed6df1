from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from gateup.errors import HeaderError, InputError
from gateup.files.gguf_set import read_gguf_set

Build = Callable[..., bytes]


def part(
    build: Build, no: int, count: int, name: str, *, total: int | None = None, count_kind: int = 2
) -> bytes:
    keys = [
        ("split.no", 2, struct.pack("<H", no)),
        ("split.count", count_kind, struct.pack("<H", count)),
    ]
    if total is not None:
        keys.append(("split.tensors.count", 5, struct.pack("<i", total)))
    return build(keys, [(name, (8,), 0, 0)], data=32)


def write(folder: Path, build: Build, count: int = 3, **changes: Any) -> list[Path]:
    paths = []
    for no in range(count):
        path = folder / f"m-{no + 1:05d}-of-{count:05d}.gguf"
        path.write_bytes(part(build, no, count, f"t{no}", **changes))
        paths.append(path)
    return paths


def test_any_part_opens_the_set(tmp_path: Path, gguf_bytes: Build) -> None:
    paths = write(tmp_path, gguf_bytes, total=3)
    for path in paths:
        files = read_gguf_set(path)
        assert [f.path for f in files] == paths
        assert [t.name for f in files for t in f.tensors] == ["t0", "t1", "t2"]


def test_what_the_package_splits(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    for i in range(5):
        writer.add_tensor(f"t{i}", np.zeros((2, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    files = read_gguf_set(tmp_path / "m-00002-of-00003.gguf")
    assert len(files) == 3
    assert [t.name for f in files for t in f.tensors] == [f"t{i}" for i in range(5)]
    assert files[0].metadata["general.architecture"] == "llama"


def test_a_whole_file_is_a_set_of_one(tmp_path: Path, gguf_bytes: Build) -> None:
    path = tmp_path / "m-00001-of-00003.gguf"  # the header decides, not the name
    path.write_bytes(gguf_bytes(tensors=[("t", (8,), 0, 0)], data=32))
    assert len(read_gguf_set(path)) == 1


def test_missing_parts_are_named(tmp_path: Path, gguf_bytes: Build) -> None:
    paths = write(tmp_path, gguf_bytes)
    paths[0].unlink()
    paths[2].unlink()
    with pytest.raises(InputError) as e:
        read_gguf_set(paths[1])
    assert (
        e.value.what == "2 of 3 parts are not there: m-00001-of-00003.gguf, m-00003-of-00003.gguf"
    )


def test_a_renamed_part(tmp_path: Path, gguf_bytes: Build) -> None:
    path = tmp_path / "renamed.gguf"
    path.write_bytes(part(gguf_bytes, 0, 3, "t"))
    with pytest.raises(HeaderError) as e:
        read_gguf_set(path)
    assert (
        e.value.what == "renamed.gguf is one of 3 parts of a model, and its name does not say which"
    )
    assert e.value.expected == "the name llama-gguf-split gave it: …-00001-of-00003.gguf"


def test_parts_in_the_wrong_place(tmp_path: Path, gguf_bytes: Build) -> None:
    paths = write(tmp_path, gguf_bytes)
    paths[1].write_bytes(part(gguf_bytes, 2, 3, "t1"))
    with pytest.raises(HeaderError, match="says it is part 2 of 3"):
        read_gguf_set(paths[0])


def test_a_tensor_in_two_parts(tmp_path: Path, gguf_bytes: Build) -> None:
    paths = write(tmp_path, gguf_bytes)
    paths[1].write_bytes(part(gguf_bytes, 1, 3, "t0"))
    with pytest.raises(HeaderError, match="'t0' is in two parts"):
        read_gguf_set(paths[0])


def test_parts_of_another_upload(tmp_path: Path, gguf_bytes: Build) -> None:
    paths = write(tmp_path, gguf_bytes, total=9)
    with pytest.raises(HeaderError, match=r"hold 3 tensors, split\.tensors\.count says 9"):
        read_gguf_set(paths[0])


def test_a_count_that_is_no_number(tmp_path: Path, gguf_bytes: Build, gguf_text: Any) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes([("split.count", 8, gguf_text("three"))]))
    with pytest.raises(HeaderError, match=r"split\.count is 'three'"):
        read_gguf_set(path)
