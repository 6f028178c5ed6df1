"""Builders of small files, byte by byte, so that any part can be made wrong."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


@pytest.fixture
def tiny_config() -> dict[str, Any]:
    """A config.json of a two-layer Llama."""
    return dict(TINY)


def _safetensors(
    tensors: Sequence[tuple[str, str, list[int], int]], metadata: dict[str, str] | None = None
) -> bytes:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, dtype, shape, nbytes in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


@pytest.fixture
def safetensors_bytes() -> Callable[..., bytes]:
    """(name, dtype, shape, nbytes) of each tensor -> a file's bytes, its data zeros."""
    return _safetensors


def _model(folder: Path, config: dict[str, Any], shards: int = 1) -> Path:
    import torch
    from safetensors.torch import save_file

    from gateup.model.families import build_spec

    spec = build_spec(config, where="test", name="test")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: torch.zeros(row.shape) for name, row in spec.tensors()}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    names = list(tensors)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: tensors[n] for n in names[i::shards]}
        save_file(part, folder / file)
        weight_map.update(dict.fromkeys(part, file))
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture
def write_model() -> Callable[..., Path]:
    """(folder, config, shards) -> the folder, with every tensor of the spec in float32."""
    return _model


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def _gguf(
    keys: Sequence[tuple[str, int, bytes]] = (),
    tensors: Sequence[tuple[str, tuple[int, ...], int, int]] = (),
    *,
    data: int = 0,
    version: int = 3,
    alignment: int = 32,
    counts: tuple[int, int] | None = None,
) -> bytes:
    n_tensors, n_keys = counts or (len(tensors), len(keys))
    out = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_keys)
    for key, kind, value in keys:
        out += text(key) + struct.pack("<I", kind) + value
    for name, ne, kind, offset in tensors:
        out += text(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, kind, offset)
    out += b"\0" * (-len(out) % alignment)
    return out + bytes(data)


@pytest.fixture
def gguf_bytes() -> Callable[..., bytes]:
    """(key, value type, raw value) and (name, ne, type, offset) -> a file's bytes."""
    return _gguf


@pytest.fixture
def gguf_text() -> Callable[[str | bytes], bytes]:
    """A string as GGUF writes it."""
    return text
