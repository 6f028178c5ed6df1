"""Bytes of tensors as they lie in real files."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from gateup.errors import InputError, TruncatedError
from gateup.files.checkpoint import demo_model
from gateup.files.gguf import read_gguf
from gateup.files.header import TensorHeader
from gateup.files.safetensors import read_safetensors
from gateup.files.tensors import TensorFiles


def test_every_byte_of_a_gguf() -> None:
    """Against the gguf package's own reader, over all tensors of a real file."""
    tensors = TensorFiles(read_gguf(demo_model()).tensors)
    reader = gguf.GGUFReader(demo_model())
    assert len(tensors) == len(reader.tensors) == 272
    for theirs in reader.tensors:
        ours = tensors[theirs.name]
        assert ours.dtype == np.uint8
        assert ours.shape[0] == (theirs.shape[1] if len(theirs.shape) > 1 else 1)
        assert np.array_equal(ours.reshape(-1), theirs.data.reshape(-1).view(np.uint8))
        tensors.release(theirs.name)


def _safetensors(path: Path, values: np.ndarray) -> Path:
    nbytes = values.nbytes
    entry = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [0, nbytes]}
    text = json.dumps({"w": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + values.tobytes())
    return path


def test_safetensors_and_what_may_be_written(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    path = _safetensors(tmp_path / "model.safetensors", values)
    with TensorFiles(read_safetensors(path).tensors) as tensors:
        view = tensors["w"]
    assert view.shape == (6, 16)
    assert np.array_equal(view.view(np.float32).reshape(2, 3, 4), values)
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1
    # Unlocked and written, it is a page of this process alone.
    open_view = view.view()
    open_view.flags.writeable = True
    open_view[:] = 0
    assert np.array_equal(
        TensorFiles(read_safetensors(path).tensors)["w"].view("f4"), values.reshape(6, 4)
    )


def test_a_file_that_shrank(tmp_path: Path) -> None:
    path = _safetensors(tmp_path / "model.safetensors", np.zeros((4, 4), np.float32))
    headers = read_safetensors(path).tensors
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TruncatedError) as caught:
        TensorFiles(headers)["w"]
    assert caught.value.what.startswith("model.safetensors has become shorter than when")
    assert caught.value.cut == ("w",)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="is empty"):
        TensorFiles(headers)["w"]
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        TensorFiles(headers)["w"]


def test_a_single_number(tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.write_bytes(b"\0\0\0\0\0\0\x80?")
    header = TensorHeader("one", None, "f32", (), 4, 4, path)
    assert TensorFiles([header])["one"].view(np.float32).tolist() == [[1.0]]
