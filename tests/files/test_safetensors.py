"""The safetensors library's own verdict is the oracle throughout."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize
from safetensors.torch import save_file

from gateup.errors import ConfigError, GateupError, HeaderError, InputError
from gateup.files.safetensors import DTYPES, read_index, read_safetensors, read_sharded

ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


def raw(header: object, data: int = 16, *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(data)


def oracle(content: bytes) -> list[tuple[str, dict[str, Any]]]:
    """What the library makes of a file. Raises SafetensorError."""
    found: list[tuple[str, dict[str, Any]]] = deserialize(content)  # type: ignore[no-untyped-call]
    return found


def accepted(content: bytes) -> bool:
    try:
        oracle(content)
    except SafetensorError:
        return False
    return True


def refusal(path: Path, content: bytes) -> HeaderError:
    path.write_bytes(content)
    with pytest.raises(HeaderError) as e:
        read_safetensors(path)
    assert str(path) in (e.value.where or "")
    return e.value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_reads_what_the_library_writes(path: Path) -> None:
    tensors = {
        "a.weight": torch.zeros(3, 5, dtype=torch.bfloat16),
        "b": torch.zeros(7, dtype=torch.float64),
        "scalar": torch.tensor(1.0),
        "empty": torch.zeros(0, 4, dtype=torch.int8),
        "flag": torch.zeros(3, dtype=torch.bool),
        "fp8": torch.zeros(2, 8).to(torch.float8_e4m3fn),
    }
    save_file(tensors, path, metadata={"format": "pt"})
    file = read_safetensors(path)
    content = path.read_bytes()
    assert file.size == len(content)
    assert file.metadata == {"format": "pt"}
    known = dict(oracle(content))
    assert {t.name for t in file.tensors} == set(known)
    for t in file.tensors:
        assert list(t.shape) == known[t.name]["shape"]
        assert t.type == DTYPES[known[t.name]["dtype"]]
        assert t.nbytes == len(known[t.name]["data"])
        assert t.file == path
        assert t.canonical is None
    assert [t.offset for t in file.tensors] == sorted(t.offset for t in file.tensors)
    assert file.tensors[-1].offset + file.tensors[-1].nbytes == file.size


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_has_the_library_s_size(path: Path, dtype: str) -> None:
    """24 elements of each; one byte more or less is refused by both."""
    bits = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "C64": 64}.get(dtype) or int(
        dtype.split("_")[0].lstrip("BFIU")
    )
    size = 24 * bits // 8
    for delta in (-1, 0, 1):
        end = size + delta
        content = raw({"x": {"dtype": dtype, "shape": [4, 6], "data_offsets": [0, end]}}, end)
        path.write_bytes(content)
        assert accepted(content) == (delta == 0)
        if delta:
            refusal(path, content)
        else:
            assert read_safetensors(path).tensors[0].nbytes == size


GOOD = [
    raw({"x": ENTRY}),
    raw({"__metadata__": {"a": "b"}, "x": ENTRY}),
    raw({"__metadata__": {"a": '{"dtype": [1, 2]}'}, "x": ENTRY}),
    raw(json.dumps({"x": ENTRY}).encode() + b"    "),
    raw({}, 0),
    raw({"x": {**ENTRY, "shape": [4], "note": 1}}),
    raw({"x": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}, "y": ENTRY}),
    raw({"y": ENTRY, "x": {"dtype": "U8", "shape": [1], "data_offsets": [16, 17]}}, 17),
    raw({"y": {**ENTRY, "data_offsets": [1, 17]}, "x": {"dtype": "U8", "shape": [1],
        "data_offsets": [0, 1]}}, 17),
    raw({"ü\u0007": ENTRY}),
    raw({"x": {"dtype": "U8", "shape": [], "data_offsets": [0, 1]}}, 1),
]  # fmt: skip


@pytest.mark.parametrize("content", GOOD)
def test_takes_what_the_library_takes(path: Path, content: bytes) -> None:
    assert accepted(content)
    path.write_bytes(content)
    file = read_safetensors(path)
    assert {(t.name, t.shape) for t in file.tensors} == {
        (name, tuple(t["shape"])) for name, t in oracle(content)
    }


def entry(**changes: object) -> bytes:
    return raw({"x": {**ENTRY, **changes}})


ATTACKS = [
    (b"", "is truncated: it has 0 bytes"),
    (b"\x10\0\0", "is truncated: it has 3 bytes"),
    (raw({"x": ENTRY}, length=1 << 60), "the header claims 1,152,921,504,606,846,976 bytes"),
    (raw({"x": ENTRY}, length=(1 << 64) - 1), "the header claims"),
    (raw({"x": ENTRY}, length=100_000_001), "the header claims 100,000,001 bytes"),
    (raw({"x": ENTRY}, length=1000), "the header takes 1,000 bytes, 81 are there"),
    (raw({"x": ENTRY}, length=0), "not JSON"),
    (raw(b"[]", 0), "the header is not a JSON object"),
    (raw(b"{" * 3000, 0), "not JSON"),
    (raw(b'{"a":' * 3000, 0), "nested too deeply"),
    (raw(b'{"\xff": 1}'), "the text is not UTF-8"),
    (raw({"x": ENTRY}, 15), "is truncated: its tensors end at byte"),
    (raw({"x": ENTRY}, 17), "has 1 byte after its last tensor"),
    (raw({}, 1), "has 1 byte after its last tensor"),
    (raw({"__metadata__": {"a": 1}, "x": ENTRY}), "__metadata__ is not a map of strings"),
    (raw({"__metadata__": [], "x": ENTRY}), "__metadata__ is not a map of strings"),
    (raw({"x": 3}), "the entry is 3"),
    (raw({"x": []}), "the entry is []"),
    (raw({"x": {}}), "dtype is None"),
    (entry(dtype=7), "dtype is 7"),
    (entry(dtype=["F32"]), "dtype is ['F32']"),
    (entry(dtype="F33"), "dtype is 'F33'"),
    (entry(dtype="f32"), "dtype is 'f32'"),
    (entry(shape=None), "shape is None"),
    (entry(shape="22"), "shape is '22'"),
    (entry(shape={"2": 2}), "shape is {'2': 2}"),
    (entry(shape=[2.0, 2]), "shape is [2.0, 2]"),
    (entry(shape=[True, 4]), "shape is [True, 4]"),
    (entry(shape=["2", 2]), "shape is ['2', 2]"),
    (entry(shape=[-2, -2]), "shape holds -2"),
    (entry(shape=[1 << 63, 4]), "shape overflows 64 bits"),
    (entry(shape=[1 << 40, 1 << 40]), "shape overflows 64 bits"),
    (entry(shape=[2, 3]), "data_offsets span 16 bytes"),
    (entry(data_offsets=None), "data_offsets is None"),
    (entry(data_offsets=[16]), "data_offsets is [16]"),
    (entry(data_offsets=[0, 8, 16]), "data_offsets is [0, 8, 16]"),
    (entry(data_offsets=[0, 16.0]), "data_offsets is [0, 16.0]"),
    (entry(data_offsets=[False, 16]), "data_offsets is [False, 16]"),
    (entry(data_offsets="ab"), "data_offsets is 'ab'"),
    (entry(data_offsets=[16, 0]), "data_offsets is [16, 0]"),
    (entry(data_offsets=[-16, 0]), "data_offsets is [-16, 0]"),
    (entry(data_offsets=[1 << 64, (1 << 64) + 16]), "data_offsets is [18446744073709551616"),
    (entry(data_offsets=[1 << 50, (1 << 50) + 16]), "it leaves a hole after the header"),
    (entry(dtype="F4", shape=[3], data_offsets=[0, 1]), "3 elements of F4 end inside a byte"),
    (raw({"x": ENTRY, "y": ENTRY}), "it overlaps 'x'"),
    (raw({"x": ENTRY, "y": {**ENTRY, "data_offsets": [8, 24]}}, 24), "it overlaps 'x'"),
    (raw({"x": ENTRY, "y": {**ENTRY, "data_offsets": [20, 36]}}, 36), "leaves a hole after 'x'"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "says"), ATTACKS, ids=[says for _, says in ATTACKS])
def test_refuses_what_the_library_refuses(path: Path, content: bytes, says: str) -> None:
    assert not accepted(content)
    assert says in refusal(path, content).what


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b'{"x": %(e)s, "x": %(e)s}', "the key 'x' occurs twice"),
        (b'{"x": {"dtype": "F32", "dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}',
         "the key 'dtype' occurs twice"),
        (b'{"__metadata__": {"a": "1", "a": "2"}, "x": %(e)s}', "the key 'a' occurs twice"),
    ],
)  # fmt: skip
def test_refuses_duplicate_keys(path: Path, header: bytes, says: str) -> None:
    """The format forbids them; the library lets some pass."""
    filled = header.replace(b"%(e)s", json.dumps(ENTRY).encode())
    assert says in refusal(path, raw(filled)).what


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PK\x03\x04\x00\x00\x08\x08" + bytes(64), "is a PyTorch pickle archive"),
        (b"\x80\x02}q\x00X\x05\x00" + bytes(64), "is a pickle"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        (b"GGUF\x03\0\0\0" + bytes(64), "is a GGUF file"),
        (b"<!DOCTYPE html><html>", "is an HTML page"),
    ],
)
def test_says_what_the_file_really_is(path: Path, content: bytes, says: str) -> None:
    error = refusal(path, content)
    assert says in error.what
    assert error.remedy


def test_a_header_that_looks_like_a_pickle_s_magic_is_read(path: Path) -> None:
    """A header of 0x280 bytes begins with pickle's first two bytes."""
    text = json.dumps({"x": ENTRY}).encode().ljust(0x280)
    path.write_bytes(raw(text))
    assert path.read_bytes()[:2] == b"\x80\x02"
    assert read_safetensors(path).tensors[0].name == "x"


def test_names_file_and_tensor(path: Path) -> None:
    error = refusal(path, raw({"model.x": {**ENTRY, "dtype": "Q4"}}))
    assert error.where == f"{path}, tensor 'model.x'"
    assert (error.expected or "").startswith("one of F64, F32, F16, BF16")


def test_long_names_do_not_flood_the_message(path: Path) -> None:
    error = refusal(path, raw({"x" * 100_000: {**ENTRY, "dtype": "Q4"}}))
    assert len(str(error)) < 800


def test_sparse_400_gb(path: Path) -> None:
    """Data is never touched: a file of 400 GB costs its header."""
    size = 400 * 10**9
    header = json.dumps({"x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        f.truncate(8 + len(header) + size)
    assert read_safetensors(path).tensors[0].nbytes == size


_MUTATION = st.tuples(
    st.sampled_from(["flip", "cut", "insert", "double"]),
    st.integers(0, 10_000),
    st.integers(0, 255),
)


def mutate(content: bytes, kind: str, at: int, value: int) -> bytes:
    at %= len(content)
    if kind == "flip":
        return content[:at] + bytes([content[at] ^ (value or 1)]) + content[at + 1 :]
    if kind == "cut":
        return content[:at]
    if kind == "insert":
        return content[:at] + bytes([value]) + content[at:]
    return content[:at] + content[at : at + value] + content[at:]


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(base=st.sampled_from(GOOD), mutations=st.lists(_MUTATION, min_size=1, max_size=3))
def test_mutated_files_get_the_library_s_verdict(
    tmp_path: Path, base: bytes, mutations: list[tuple[str, int, int]]
) -> None:
    content = base
    for kind, at, value in mutations:
        content = mutate(content or b"\0", kind, at, value)
    path = tmp_path / "fuzz.safetensors"
    path.write_bytes(content)
    try:
        file = read_safetensors(path)
    except GateupError:
        # Stricter than the library only where the format's text is: unique keys, whole characters.
        if accepted(content):
            with pytest.raises(GateupError, match=r"occurs twice|surrogate|metadata"):
                read_safetensors(path)
        return
    assert accepted(content)
    assert {t.name: list(t.shape) for t in file.tensors} == {
        name: t["shape"] for name, t in oracle(content)
    }


_VALUE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=4),
    st.sampled_from(["F32", "U8", "F4"]),
    st.lists(st.integers(-1, 20), max_size=4),
)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    entries=st.dictionaries(
        st.text(max_size=3),
        st.one_of(
            _VALUE,
            st.fixed_dictionaries(
                {
                    "dtype": st.sampled_from(["F32", "U8", "F4", "BF16"]) | _VALUE,
                    "shape": st.lists(st.integers(0, 4), max_size=3) | _VALUE,
                    "data_offsets": st.tuples(st.integers(0, 9), st.integers(0, 32)) | _VALUE,
                }
            ),
        ),
        max_size=3,
    )
)
def test_generated_headers_get_the_library_s_verdict(
    tmp_path: Path, entries: dict[str, Any]
) -> None:
    content = raw(entries, 16)
    path = tmp_path / "fuzz.safetensors"
    path.write_bytes(content)
    if accepted(content):
        assert len(read_safetensors(path).tensors) == len(oracle(content))
    else:
        with pytest.raises(GateupError):
            read_safetensors(path)


# Shards


def sharded(folder: Path, build: Callable[..., bytes], weight_map: object) -> Path:
    (folder / "a.safetensors").write_bytes(build([("x", "U8", [4], 4), ("y", "U8", [4], 4)]))
    (folder / "b.safetensors").write_bytes(build([("z", "U8", [4], 4)]))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return index


WHOLE = {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}


def test_shards_under_an_index(tmp_path: Path, safetensors_bytes: Callable[..., bytes]) -> None:
    found = read_sharded(sharded(tmp_path, safetensors_bytes, WHOLE))
    assert [t.name for f in found.files for t in f.tensors] == ["x", "y", "z"]
    assert found.problems == ()


def test_index_problems_are_sentences(
    tmp_path: Path, safetensors_bytes: Callable[..., bytes]
) -> None:
    weight_map = {"x": "a.safetensors", "z": "a.safetensors", "y": "b.safetensors"}
    found = read_sharded(sharded(tmp_path, safetensors_bytes, weight_map))
    assert found.problems == ("2 tensors in another shard than model.safetensors.index.json says",)
    found = read_sharded(
        sharded(tmp_path, safetensors_bytes, {"x": "a.safetensors", "z": "b.safetensors"})
    )
    assert found.problems == ("1 tensor of the shards not in model.safetensors.index.json: y",)


def test_absent_shards_are_named(tmp_path: Path, safetensors_bytes: Callable[..., bytes]) -> None:
    names = {f"t{i}": f"s-{i}.safetensors" for i in range(8)}
    with pytest.raises(InputError) as e:
        read_sharded(sharded(tmp_path, safetensors_bytes, WHOLE | names))
    assert e.value.what == (
        "8 of 10 shards are not there: s-0.safetensors, s-1.safetensors, s-2.safetensors, "
        "s-3.safetensors, s-4.safetensors and 3 more"
    )


def test_a_tensor_in_no_shard(tmp_path: Path, safetensors_bytes: Callable[..., bytes]) -> None:
    with pytest.raises(HeaderError, match="1 tensor of the index in no shard: w"):
        read_sharded(sharded(tmp_path, safetensors_bytes, WHOLE | {"w": "b.safetensors"}))


def test_a_tensor_in_two_shards(tmp_path: Path, safetensors_bytes: Callable[..., bytes]) -> None:
    index = sharded(tmp_path, safetensors_bytes, WHOLE)
    (tmp_path / "b.safetensors").write_bytes(safetensors_bytes([("x", "U8", [4], 4)]))
    with pytest.raises(
        HeaderError, match=r"'x' is in two shards: a\.safetensors and b\.safetensors"
    ):
        read_sharded(index)


@pytest.mark.parametrize(
    "shard",
    [
        "../a.safetensors", "/etc/x.safetensors", "sub/a.safetensors", "..\\a.safetensors",
        "C:a.safetensors", "", "a.bin", ".safetensors", "a\n.safetensors", "a\0.safetensors",
        "x" * 300 + ".safetensors", 3, None, ["a.safetensors"], {"a": 1},
    ],
)  # fmt: skip
def test_shard_names_stay_in_the_folder(tmp_path: Path, shard: object) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": shard}}))
    with pytest.raises(HeaderError) as e:
        read_index(index)
    assert e.value.where == f"{index}, field weight_map"
    assert e.value.expected == "the name of a .safetensors file in the same folder"


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {}}'])
def test_an_index_without_a_map(tmp_path: Path, content: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(content)
    with pytest.raises((HeaderError, ConfigError)):
        read_index(index)
