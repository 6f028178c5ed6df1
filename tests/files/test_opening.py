from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateup.errors import HeaderError, InputError
from gateup.files.opening import FOREIGN, foreign, open_regular, refuse_foreign


def test_size_and_content(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    handle, size = open_regular(path)
    with handle:
        assert (handle.read(), size) == (b"abc", 3)


def test_links_are_followed(tmp_path: Path) -> None:
    """The Hub's cache is made of them."""
    (tmp_path / "blob").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("blob")
    handle, size = open_regular(tmp_path / "link")
    handle.close()
    assert size == 3


def test_what_is_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name, says in (
        ("pipe", "a device or pipe"),
        ("", "is a folder"),
        ("loop", "cannot be read"),
        ("none", "cannot be read: No such file"),
        ("x" * 300, "cannot be read: File name too long"),
    ):
        with pytest.raises(InputError, match=says):
            open_regular(tmp_path / name)


def test_foreign_files_are_named() -> None:
    for prefix, what, remedy in FOREIGN:
        assert foreign(prefix + b"...") == (what, remedy)
        with pytest.raises(HeaderError) as e:
            refuse_foreign(Path("m.gguf"), prefix + b"...")
        assert e.value.what == f"m.gguf is {what}"
        assert e.value.remedy == remedy
    assert foreign(b"") is None
    refuse_foreign(Path("m.gguf"), b"plain")


ATTACKS = """
import json, resource, struct, sys
from pathlib import Path
import gateup
from gateup.errors import GateupError

folder = Path(sys.argv[1])
(folder / "config.json").write_text("{}")
config = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 8,
    "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 8,
}
(folder / "config.json").write_text(json.dumps(config))

def u64(n):
    return struct.pack("<Q", n)

def sparse(name, head, size):
    with (folder / name).open("wb") as f:
        f.write(head)
        f.truncate(size)
    return folder / name

def gguf(tensors, keys, body=b""):
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + body

def array(kind, count):
    return u64(1) + b"k" + struct.pack("<IIQ", 9, kind, count)

T = 1 << 40
files = [
    sparse("a.gguf", gguf(1 << 60, 0), T),
    sparse("b.gguf", gguf(0, 1 << 60), T),
    sparse("c.gguf", gguf(65536, 65536), T),
    sparse("d.gguf", gguf(0, 1, array(8, 1 << 38)), T),
    sparse("e.gguf", gguf(0, 1, array(8, (1 << 22))), T),
    sparse("f.gguf", gguf(0, 1, array(12, 1 << 36)), T),
    sparse("g.gguf", gguf(0, 1, array(9, 4096)), T),
    sparse("h.gguf", gguf(0, 1, u64(1) + b"k" + struct.pack("<IQ", 8, 1 << 39)), T),
    sparse("a.safetensors", u64(1 << 60), T),
    sparse("b.safetensors", u64(99_999_999), T),
    sparse("c.safetensors", u64(30_000_000) + b'{"a":[' + b"{}," * 9_000_000, T),
    sparse("d.safetensors", u64(30_000_000) + b'{"' + b"x" * 40_000_000, T),
    sparse("big.json", b"{" + b" " * 100, T),
]
resource.setrlimit(resource.RLIMIT_AS, (700 << 20,) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for path in files:
    try:
        gateup.open(path)
        print(path.name, "opened")
    except GateupError as e:
        print(path.name, "refused")
"""


def test_claims_cost_neither_memory_nor_time(tmp_path: Path) -> None:
    """Files of 1 TiB that claim everything, under 700 MB of address space and 60 s."""
    out = subprocess.run(
        [sys.executable, "-c", ATTACKS, str(tmp_path)], capture_output=True, text=True
    )
    assert out.stderr == ""
    assert out.returncode == 0
    assert [line.split()[1] for line in out.stdout.splitlines()] == ["refused"] * 13
