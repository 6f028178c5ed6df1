"""Bytes of tensors as they lie in real files."""

from __future__ import annotations

import json
import mmap
import struct
from pathlib import Path

import numpy as np
import pytest

from gateup.errors import InputError, TruncatedError
from gateup.files.checkpoint import demo_model
from gateup.files.gguf import read_gguf
from gateup.files.safetensors import read_safetensors
from gateup.files.tensors import TensorFiles


def test_bytes_of_a_gguf() -> None:
    """The first and the last tensor of a real file, and one between, as the file has them."""
    tensors = read_gguf(demo_model()).tensors
    whole = demo_model().read_bytes()
    with TensorFiles() as files:
        for tensor in (tensors[0], tensors[len(tensors) // 2], tensors[-1]):
            found = files.raw(tensor)
            assert found.dtype == np.uint8
            assert found.tobytes() == whole[tensor.offset : tensor.offset + tensor.nbytes]
            files.release(tensor)
            assert found[-1] == whole[tensor.offset + tensor.nbytes - 1]


def _safetensors(path: Path, values: np.ndarray) -> Path:
    nbytes = values.nbytes
    entry = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [0, nbytes]}
    text = json.dumps({"w": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + values.tobytes())
    return path


def test_safetensors_and_what_may_be_written(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    path = _safetensors(tmp_path / "model.safetensors", values)
    (header,) = read_safetensors(path).tensors
    with TensorFiles() as files:
        view = files.raw(header)
    assert view.shape == (96,)
    assert np.array_equal(view.view(np.float32).reshape(2, 3, 4), values)
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1
    # Unlocked and written, it is a page of this process alone.
    open_view = view.view()
    open_view.flags.writeable = True
    open_view[:] = 0
    assert np.array_equal(TensorFiles().raw(header).view(np.float32), values.reshape(-1))


def test_a_file_that_shrank(tmp_path: Path) -> None:
    path = _safetensors(tmp_path / "model.safetensors", np.zeros((4, 4), np.float32))
    (header,) = read_safetensors(path).tensors
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TruncatedError) as caught:
        TensorFiles().raw(header)
    assert caught.value.what.startswith("model.safetensors is truncated: the tensor ends at byte")
    assert caught.value.cut == ("w",)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="is empty"):
        TensorFiles().raw(header)
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        TensorFiles().raw(header)


def test_where_a_private_mapping_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it is mapped read-only."""
    values = np.arange(4, dtype=np.float32).reshape(2, 2)
    (header,) = read_safetensors(_safetensors(tmp_path / "model.safetensors", values)).tensors
    real = mmap.mmap

    def strict(descriptor: int, size: int, access: int) -> mmap.mmap:
        if access == mmap.ACCESS_COPY:
            raise OSError("Cannot allocate memory")
        return real(descriptor, size, access=access)

    monkeypatch.setattr("gateup.files.tensors.mmap.mmap", strict)
    view = TensorFiles().raw(header)
    assert view.view(np.float32).tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.view().flags.writeable = True
