from __future__ import annotations

from pathlib import Path

from gateup.files.header import TensorHeader, clip, listed, many, new_header


def test_new_header_is_the_named_call() -> None:
    fields = ("n", "c", "bf16", (2, 3), 8, 12, Path("f"))
    made = new_header(fields)
    assert made == TensorHeader(*fields)
    assert type(made) is TensorHeader
    assert (made.name, made.canonical, made.type, made.shape) == ("n", "c", "bf16", (2, 3))
    assert (made.offset, made.nbytes, made.file) == (8, 12, Path("f"))


def test_clip() -> None:
    assert clip("a\nb\x1b[31m") == r"'a\nb\x1b[31m'"
    assert clip(["a"]) == "['a']"
    assert len(clip("x" * 10_000_000)) == 80
    assert clip("x" * 10_000_000).endswith("...")


def test_listed() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(i) for i in range(1005)]) == "0, 1, 2, 3, 4 and 1,000 more"
    assert listed(["a\x1b[31m"]) == r"'a\x1b[31m'"
    assert len(listed(["x" * 1000])) == 120


def test_many() -> None:
    assert [many(n, "tensor") for n in (0, 1, 1025)] == ["0 tensors", "1 tensor", "1,025 tensors"]
