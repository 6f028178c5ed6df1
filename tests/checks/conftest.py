"""Checkpoints for rules: descriptions without files, and files whose data is a hole."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import pytest

from gateup.checks.context import Context
from gateup.checks.finding import Finding
from gateup.files.checkpoint import Checkpoint
from gateup.files.gguf import TYPES
from gateup.model.families import build_spec
from gateup.model.quant.formats import FORMATS, row_nbytes

WIDTH = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1}
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}

Tensors = dict[str, tuple[int, ...]]


def _described(config: Mapping[str, Any], **parts: Any) -> Context:
    spec = build_spec(config, where="test", name="test")
    path = Path("model/config.json")
    checkpoint = Checkpoint(spec, "config", path, (), None, "config.json", None)
    return Context(checkpoint, **parts)


def _tensors(config: Mapping[str, Any]) -> Tensors:
    spec = build_spec(config, where="test", name="test")
    return {name: row.shape for name, row in spec.tensors()}


def _safetensors(path: Path, tensors: Tensors, dtype: str) -> int:
    """Write the header; the data is a hole of the right size. Its bytes."""
    header, at = {}, 0
    for name, shape in tensors.items():
        nbytes = prod(shape) * WIDTH[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    return at


def _write(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Tensors | None = None,
    *,
    dtype: str = "BF16",
    shards: int = 0,
    total_size: int | None = None,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = _tensors(config) if tensors is None else tensors
    if not shards:
        _safetensors(folder / "model.safetensors", tensors, dtype)
        return folder
    weight_map, total, names = {}, 0, list(tensors)
    size = -(-len(names) // shards)
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: tensors[n] for n in names[i * size : (i + 1) * size]}
        total += _safetensors(folder / file, part, dtype)
        weight_map.update(dict.fromkeys(part, file))
    metadata = {"total_size": total if total_size is None else total_size}
    index = {"metadata": metadata, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def _adapter(
    folder: Path,
    config: Mapping[str, Any],
    leaves: tuple[str, ...] = ("q_proj", "gate_proj"),
    *,
    layers: Iterable[int] | None = None,
    rank: int = 4,
    more: Tensors | None = None,
    **settings: Any,
) -> Path:
    """A LoRA adapter on those modules of the model that `config` describes, zeros all through.

    Settings go into adapter_config.json, and win over what suits the file.
    """
    spec = build_spec(config, where="test", name="test")
    wanted = range(spec.num_layers) if layers is None else layers
    tensors: Tensors = {}
    for row in spec.rows:
        module = row.name.removesuffix(".weight")
        if module.rpartition(".")[2] in leaves and row.layer in wanted:
            out, inp = row.shape
            tensors[f"base_model.model.{module}.lora_A.weight"] = (rank, inp)
            tensors[f"base_model.model.{module}.lora_B.weight"] = (out, rank)
    values = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": list(leaves)}
    folder.mkdir(parents=True, exist_ok=True)
    _safetensors(folder / "adapter_model.safetensors", tensors | (more or {}), "F32")
    (folder / "adapter_config.json").write_text(json.dumps(values | settings))
    return folder


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    """A metadata value with its type in front."""
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)


def _gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[str, Any]],
    *,
    size: int | None = None,
    cut: int = 0,
) -> Path:
    """`size` is reached by a filler string in the metadata; the last `cut` bytes are left out."""
    numbers = {name: number for number, name in TYPES.items()}
    table, at = b"", 0
    for name, (type_, ne) in tensors.items():
        at = -(-at // 32) * 32
        table += _text(name)
        table += struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, numbers[type_], at)
        at += row_nbytes(FORMATS[type_], ne[0]) * prod(ne[1:])
    keys = b"".join(_text(k) + _value(v) for k, v in metadata.items())
    count, fixed = len(metadata), 24
    if size is not None:
        filler = size - at - fixed - len(keys) - len(table) - len(_text("filler")) - 12
        keys += _text("filler") + struct.pack("<I", 8) + _text(" " * filler)
        count += 1
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), count) + keys + table
    start = -(-len(head) // 32) * 32
    with path.open("wb") as file:
        file.write(head)
        file.truncate(start + at - cut)
    return path


@pytest.fixture
def write_gguf() -> Callable[..., Path]:
    """(path, metadata, {name: (type, ne)}, size, cut) -> the path of such a GGUF."""
    return _gguf


def _only(findings: Any, rule: str) -> Finding:
    found = [f for f in findings if f.rule == rule]
    assert len(found) == 1, [f"{f.rule}: {f.title}" for f in findings]
    return found[0]


@pytest.fixture
def only() -> Callable[..., Finding]:
    """(findings, rule id) -> the one finding of that rule."""
    return _only


@pytest.fixture
def tiny() -> dict[str, Any]:
    """A three-layer Llama's config."""
    return dict(TINY)


@pytest.fixture
def described() -> Callable[..., Context]:
    """(config, parts of the context) -> a context without weights."""
    return _described


@pytest.fixture
def tensors_of() -> Callable[..., Tensors]:
    """config -> shape of every tensor that it describes, by name."""
    return _tensors


@pytest.fixture
def write() -> Callable[..., Path]:
    """(folder, config, tensors, dtype, shards, total_size) -> the folder with such a model."""
    return _write


@pytest.fixture
def write_adapter() -> Callable[..., Path]:
    """(folder, config of its base, leaves, layers, rank, more tensors, settings) -> the folder."""
    return _adapter
