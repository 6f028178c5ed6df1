"""The gguf package reads the same files: its GGUFReader and GGUFWriter are the oracle."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateup.errors import GateupError, HeaderError
from gateup.files import gguf as ours
from gateup.files.gguf import Skipped, read_gguf

Build = Callable[..., bytes]
Text = Callable[[str | bytes], bytes]

U32 = 4


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def refusal(path: Path, content: bytes) -> HeaderError:
    path.write_bytes(content)
    with pytest.raises(HeaderError) as e:
        read_gguf(path)
    assert str(path) in (e.value.where or "")
    return e.value


# Against the package


def test_type_table_is_the_package_s() -> None:
    names = {int(q): q.name.lower() for q in gguf.GGMLQuantizationType}
    assert dict(ours.TYPES) == names
    assert not set(ours.TYPES) & set(ours.REMOVED)


def test_real_file(smollm2_gguf: Path) -> None:
    file = read_gguf(smollm2_gguf)
    oracle = gguf.GGUFReader(smollm2_gguf)
    assert len(file.tensors) == 272
    assert file.size == 98_362_432
    assert file.data_start == oracle.data_offset
    theirs = {t.name: t for t in oracle.tensors}
    for t in file.tensors:
        other = theirs[t.name]
        assert t.shape == tuple(int(d) for d in other.shape[::-1])
        assert t.type == other.tensor_type.name.lower()
        assert (t.offset, t.nbytes) == (other.data_offset, other.n_bytes)
    for key, value in file.metadata.items():
        contents = oracle.fields[key].contents()
        if isinstance(value, Skipped):
            assert value.length == len(contents)
        else:
            assert value == contents
    assert {k for k, v in file.metadata.items() if isinstance(v, Skipped)} == {
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges",
    }


def test_every_value_type(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    values: dict[str, Any] = {
        "uint8": 200, "int8": -3, "uint16": 60_000, "int16": -300, "uint32": 1 << 31,
        "int32": -70_000, "float32": 0.5, "uint64": 1 << 63, "int64": -(1 << 40),
        "float64": 1e-300, "bool": True, "string": "héllo",
    }  # fmt: skip
    for kind, value in values.items():
        getattr(writer, f"add_{kind}")(f"x.{kind}", value)
    arrays: dict[str, list[Any]] = {
        "ints": [1, -2, 3], "floats": [0.5, 1.5], "bools": [True, False], "strings": ["a", "", "ü"],
        "kept": list(range(4096)), "large": list(range(4097)), "words": ["w"] * 5000,
        "long": ["x" * 1000] * 100,
    }  # fmt: skip
    for name, array in arrays.items():
        writer.add_array(f"a.{name}", array)
    writer.add_array("a.nested", [[1, 2], [3]])
    for name, dtype in (("f", np.float32), ("h", np.float16), ("i", np.int32)):
        writer.add_tensor(name, np.zeros((3, 32), dtype=dtype))
    q8 = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("q", np.zeros((2, 3, 68), dtype=np.uint8), raw_dtype=q8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(path)
    for kind, value in values.items():
        assert file.metadata[f"x.{kind}"] == value, kind
    for name in ("ints", "floats", "bools", "strings", "kept"):
        assert file.metadata[f"a.{name}"] == arrays[name]
    assert file.metadata["a.large"] == Skipped("i32", 4097)
    assert file.metadata["a.words"] == Skipped("string", 5000)
    assert file.metadata["a.long"] == Skipped("string", 100)
    assert file.metadata["a.nested"] == [[1, 2], [3]]
    shapes = {t.name: (t.type, t.shape) for t in file.tensors}
    assert shapes == {
        "f": ("f32", (3, 32)),
        "h": ("f16", (3, 32)),
        "i": ("i32", (3, 32)),
        "q": ("q8_0", (2, 3, 64)),
    }
    for t in gguf.GGUFReader(path).tensors:
        mine = next(x for x in file.tensors if x.name == t.name)
        assert (mine.offset, mine.nbytes) == (t.data_offset, t.n_bytes)


def test_alignment_key(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(256)
    writer.add_tensor("a", np.zeros(3, dtype=np.float32))
    writer.add_tensor("b", np.zeros(3, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(path)
    assert file.alignment == 256
    assert [t.offset % 256 for t in file.tensors] == [0, 0]
    assert [t.offset for t in file.tensors] == [
        t.data_offset for t in gguf.GGUFReader(path).tensors
    ]


# By hand


def test_version_2_and_no_padding_after_the_last_tensor(path: Path, gguf_bytes: Build) -> None:
    """A file may end with its last tensor's last byte."""
    path.write_bytes(gguf_bytes(tensors=[("t", (3,), 0, 0)], data=12, version=2))
    file = read_gguf(path)
    assert file.version == 2
    assert file.tensors[0].nbytes == 12
    assert file.tensors[0].offset + 12 == file.size


def test_scalar_and_empty_tensors(path: Path, gguf_bytes: Build) -> None:
    path.write_bytes(gguf_bytes(tensors=[("s", (), 0, 0), ("e", (0, 4), 0, 32)], data=36))
    assert [(t.name, t.shape, t.nbytes) for t in read_gguf(path).tensors] == [
        ("s", (), 4),
        ("e", (4, 0), 0),
    ]


def test_long_text_is_stepped_over(path: Path, gguf_bytes: Build, gguf_text: Text) -> None:
    path.write_bytes(gguf_bytes([("a", 8, gguf_text(b"\xff" * (1 << 21))), ("b", U32, u32(5))]))
    assert read_gguf(path).metadata == {"a": Skipped("text", 1 << 21), "b": 5}


def test_kept_values_are_bounded_in_all(path: Path, gguf_bytes: Build) -> None:
    """Small arrays are kept until there are too many of them."""
    body = struct.pack("<IQ", 0, 4096) + bytes(4096)
    path.write_bytes(gguf_bytes([(f"k{i}", 9, body) for i in range(1100)]))
    values = list(read_gguf(path).metadata.values())
    kept = [v for v in values if isinstance(v, list)]
    assert 1000 < len(kept) < 1030  # 32 MiB at 8 a piece
    assert Skipped("u8", 4096) in values


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not a GGUF file: it begins with b''"),
        (b"GG", "is not a GGUF file"),
        (b"ABCD" + bytes(40), "is not a GGUF file: it begins with b'ABCD'"),
        (b"GGUF" + u32(3), "is truncated: it has 8 bytes"),
        (b"GGUF" + u32(1) + bytes(40), "is GGUF version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(40), "is a big-endian GGUF"),
        (b"GGUF" + u32(4) + bytes(40), "is GGUF version 4"),
        (b"GGUF" + u32(0) + bytes(40), "is GGUF version 0"),
        (b"tjgg" + bytes(40), "is a GGJT file from before GGUF"),
        (b"PK\x03\x04" + bytes(40), "is a PyTorch pickle archive"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
    ],
)
def test_not_a_gguf(path: Path, content: bytes, says: str) -> None:
    assert says in refusal(path, content).what


def attacks(build: Build, text: Text) -> list[tuple[bytes, str, str]]:
    """(content, what the error says, what `where` says)."""
    ok = ("t", (32,), 0, 0)
    huge = 1 << 60
    strings = struct.pack("<IQ", 8, huge)
    return [
        (build(counts=(huge, 0)), "claims 1,152,921,504,606,846,976 tensors", "the counts"),
        (build(counts=(0, huge)), "claims 1,152,921,504,606,846,976 metadata", "the counts"),
        (build(counts=(60_000, 0)), "claims 60,000 tensors, the file has", "the counts"),
        (build(counts=(0, 60_000)), "claims 60,000 metadata entries, the file", "the counts"),
        (build([("k", 8, u64(huge))]), "truncated or corrupt", "key 'k'"),
        (build([("k", 8, u64((1 << 64) - 1))]), "truncated or corrupt", "key 'k'"),
        (build([("k", 9, strings)]), "claims 1,152,921,504,606,846,976 strings", "key 'k'"),
        (build([("k", 9, struct.pack("<IQ", 8, 1 << 20))]), "claims 1,048,576 strings", "key 'k'"),
        (build([("k", 9, struct.pack("<IQQ", 8, 1, huge) + bytes(64))]), "truncated", "key 'k'"),
        (build([("k", 9, struct.pack("<IQQ", 8, 2, (1 << 64) - 1) + bytes(64))]), "truncated",
         "key 'k'"),
        (build([("k", 9, struct.pack("<IQQ", 8, 2, (1 << 63) - 9) + bytes(64))]), "truncated",
         "key 'k'"),
        (build([("k", 9, struct.pack("<IQ", 10, huge))]), "elements", "key 'k'"),
        (build([("k", 9, struct.pack("<IQ", 9, huge))]), "arrays", "key 'k'"),
        (build([("k", 9, struct.pack("<IQ", 9, 1) * 9 + bytes(64))]), "too many arrays", "key 'k'"),
        (build([("k", 9, struct.pack("<IQ", 13, 0))]), "element type 13 is not known", "key 'k'"),
        (build([("k", 13, b"")]), "value type 13 is not known", "key 'k'"),
        (build([("k", 7, b"\2")]), "a bool is 2", "key 'k'"),
        (build([("k", 9, struct.pack("<IQ", 7, 2) + b"\1\3")]), "a bool is 3", "key 'k'"),
        (build([("k", 8, text(b"\xff"))]), "a string is not UTF-8", "key 'k'"),
        (build([("k", 9, struct.pack("<IQ", 8, 1) + text(b"\xff"))]), "not UTF-8", "key 'k'"),
        (build([("", 0, b"\1")]), "the key is empty", "metadata entry 1 of 1"),
        (build([("k", 0, b"\1"), ("k", 0, b"\1")]), "the key occurs twice", "key 'k'"),
        (build([("k" * 70_000, 0, b"\1")]), "the key has 70,000 bytes", "metadata entry 1"),
        (build([("general.alignment", U32, u32(0))]), "the alignment is 0", "general.alignment"),
        (build([("general.alignment", U32, u32(48))]), "the alignment is 48", "general.alignment"),
        (build([("general.alignment", 8, text("32"))]), "the alignment is", "general.alignment"),
        (build(tensors=[ok, ("t", (32,), 0, 128)], data=256), "two tensors have this", "'t'"),
        (build(tensors=[("", (32,), 0, 0)], data=128), "tensor's name is empty", "tensor 1 of 1"),
        (build(tensors=[("t" * 2000, (1,), 0, 0)]), "name has 2,000 bytes", "tensor 1 of 1"),
        (build(tensors=[("t", (1,) * 5, 0, 0)], data=99), "it has 5 dimensions", "'t'"),
        (build(tensors=[("t", (32,), 99, 0)], data=128), "type 99 is not known", "'t'"),
        (build(tensors=[("t", (32,), 4, 0)], data=128), "type 4 (Q4_2) was removed", "'t'"),
        (build(tensors=[("t", (33,), 2, 0)], data=128), "rows of 33 are not whole blocks", "'t'"),
        (build(tensors=[("t", (32, 256), 12, 0)], data=9999), "whole blocks of q4_k", "'t'"),
        (build(tensors=[("t", (huge, huge), 0, 0)], data=9), "overflow", "'t'"),
        (build(tensors=[("t", ((1 << 64) - 1,), 0, 0)], data=9), "overflow", "'t'"),
        (build(tensors=[("t", (0, huge, huge), 0, 0)], data=9), "", ""),
        (build(tensors=[("t", (32,), 0, 8)], data=256), "offset 8 is not aligned", "'t'"),
        (build(tensors=[("t", (32,), 0, 1 << 63)], data=256), "is truncated", "'t'"),
        (build(tensors=[("t", (1 << 50,), 0, 0)], data=256), "is truncated", "'t'"),
        (build(tensors=[ok], data=127), "is truncated: the tensor ends at byte", "'t'"),
        (build(tensors=[ok, ("u", (32,), 0, 96)], data=256), "it overlaps 't'", "'u'"),
        (build(tensors=[ok, ("u", (32,), 0, 0)], data=256), "it overlaps", ""),
    ]  # fmt: skip


def test_attacks(path: Path, gguf_bytes: Build, gguf_text: Text) -> None:
    for content, says, where in attacks(gguf_bytes, gguf_text):
        if not says:  # an empty tensor of absurd width takes no bytes
            path.write_bytes(content)
            assert read_gguf(path).tensors[0].nbytes == 0
            continue
        error = refusal(path, content)
        assert says in error.what
        assert where in (error.where or ""), says


def test_every_truncation_of_a_header_is_refused(
    path: Path, gguf_bytes: Build, gguf_text: Text
) -> None:
    content = gguf_bytes(
        [
            ("a", 8, gguf_text("text")),
            ("b", 9, struct.pack("<IQ", 8, 2) + gguf_text("x") + gguf_text("y")),
            ("c", 9, struct.pack("<IQ", 5, 3) + bytes(12)),
        ],
        [("t", (32, 2), 0, 0), ("u", (32,), 2, 256)],
        data=256 + 18,
    )
    path.write_bytes(content)
    assert len(read_gguf(path).tensors) == 2
    for end in range(len(content)):
        refusal(path, content[:end])


def test_a_sparse_file_of_400_gb(path: Path, gguf_bytes: Build) -> None:
    elements = 100 * 10**9
    path.write_bytes(gguf_bytes(tensors=[("t", (1000, elements // 1000), 0, 0)]))
    with path.open("r+b") as f:
        f.truncate(path.stat().st_size + 4 * elements)
    assert read_gguf(path).tensors[0].nbytes == 4 * elements


def test_empty_strings_without_end(path: Path, gguf_bytes: Build) -> None:
    """A hole of zeros reads as billions of empty strings; the count is refused, not walked."""
    path.write_bytes(gguf_bytes([("k", 9, struct.pack("<IQ", 8, 1 << 40))]))
    with path.open("r+b") as f:
        f.truncate(1 << 42)
    with pytest.raises(HeaderError, match="at most 4,194,304"):
        read_gguf(path)


# Fuzz


def check(path: Path) -> None:
    """Only our errors escape, and what is taken lies inside the file."""
    try:
        file = read_gguf(path)
    except GateupError:
        return
    for t in file.tensors:
        assert 0 <= file.data_start <= t.offset <= t.offset + t.nbytes <= file.size


@pytest.fixture(scope="session")
def small_header(smollm2_gguf: Path) -> bytes:
    """The real header with its vocabulary cut down, so that flips hit every kind of field."""
    file = read_gguf(smollm2_gguf)
    content = smollm2_gguf.read_bytes()[: file.data_start]
    start = content.index(b"tokenizer.ggml.tokens") - 8
    end = content.index(b"tokenizer.ggml.bos_token_id") - 8
    n_keys = struct.unpack_from("<Q", content, 16)[0] - 3
    return content[:16] + u64(n_keys) + content[24:start] + content[end:]


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_byte_flips_of_the_real_header(
    tmp_path: Path, small_header: bytes, data: st.DataObject
) -> None:
    content = bytearray(small_header)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "fuzz.gguf"
    with path.open("wb") as f:
        f.write(content)
        f.truncate(98_362_432)
    check(path)


def test_the_cut_header_is_whole(tmp_path: Path, small_header: bytes) -> None:
    """What the flips start from is a valid file; the flips prove nothing otherwise."""
    path = tmp_path / "cut.gguf"
    with path.open("wb") as f:
        f.write(small_header)
        f.truncate(98_362_432)
    file = read_gguf(path)
    assert len(file.tensors) == 272
    assert len(file.metadata) > 20


@pytest.mark.parametrize("seed", range(40))
def test_byte_flips_in_the_real_vocabulary(tmp_path: Path, smollm2_gguf: Path, seed: int) -> None:
    file = read_gguf(smollm2_gguf)
    with smollm2_gguf.open("rb") as f:
        content = bytearray(f.read(file.data_start))
    rng = np.random.default_rng(seed)
    for at in rng.integers(0, len(content), 5):
        content[at] ^= int(rng.integers(1, 256))
    path = tmp_path / "fuzz.gguf"
    with path.open("wb") as out:
        out.write(content)
        out.truncate(file.size)
    check(path)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=300), st.integers(0, 5), st.integers(0, 5))
def test_random_bodies(tmp_path: Path, body: bytes, tensors: int, keys: int) -> None:
    path = tmp_path / "fuzz.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + body)
    check(path)
