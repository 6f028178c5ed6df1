"""The random models as GGUF files, written as llama.cpp's converter does, with the gguf package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel

from gateup.files.checkpoint import Checkpoint
from gateup.model.families import GGUFTensor, family_of, gguf_tensors

Array = np.ndarray[Any, Any]
# Families whose converter puts rows of q and k so that the numbers of a rotary pair are neighbours.
PERMUTED = ("llama", "mistral", "mixtral", "smollm3", "granite")
GEMMA = ("gemma", "gemma2", "gemma3_text")


def write_gguf(
    path: Path,
    checkpoint: Checkpoint,
    model: PreTrainedModel,
    extra: Mapping[str, Any] | None = None,
    tables: Mapping[str, Array] | None = None,
    encode: Callable[[str, Array], tuple[Array, Any]] | None = None,
) -> Path:
    """extra: metadata without the architecture's prefix; tables: tensors beside the model's;
    encode: (name, float32 array) -> (bytes, GGML type) for matrices."""
    spec = checkpoint.spec
    family = family_of(spec)
    arch = family.gguf_arch
    assert arch is not None
    writer = gguf.GGUFWriter(str(path), arch)
    for key, name in family.gguf_keys.items():
        value = spec.config.get(name)
        if value is None and name == "rope_theta":
            settings = spec.config.get("rope_parameters") or {}
            value = settings.get("full_attention", settings).get("rope_theta")
        if value is not None:
            _add(writer, f"{arch}.{key}", value)
    for key, value in (extra or {}).items():
        _add(writer, key if "." in key and key.startswith("tokenizer") else f"{arch}.{key}", value)
    state = {k: v.detach().float().numpy() for k, v in model.state_dict().items()}
    for tensor in gguf_tensors(spec):
        if not tensor.rows:
            continue
        array = _array(tensor, state, checkpoint)
        if encode is not None and array.ndim == 2 and min(array.shape) > 1:
            data, kind = encode(tensor.name, array)
            writer.add_tensor(tensor.name, data, raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, array)
    for name, table in (tables or {}).items():
        writer.add_tensor(name, table)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_string(key, value)


def _array(tensor: GGUFTensor, state: Mapping[str, Array], checkpoint: Checkpoint) -> Array:
    """One tensor's values [.., out, in]."""
    row = tensor.rows[0]
    family, layer = checkpoint.spec.family, row.layer
    if row.role.startswith("experts."):
        fused = f"model.layers.{layer}.mlp.experts."
        if row.role == "experts.down_proj":
            return state[fused + "down_proj"]
        gate, up = np.split(state[fused + "gate_up_proj"], 2, axis=1)
        return np.ascontiguousarray(gate if row.role == "experts.gate_proj" else up)
    name = row.name.replace("block_sparse_moe", "mlp")
    array = state[name]
    role = row.role.removesuffix(".bias")
    if family in PERMUTED and role in ("q_proj", "k_proj"):
        attention = checkpoint.spec.layers[layer or 0].attention
        assert attention is not None
        heads = attention.num_heads if role == "q_proj" else attention.num_kv_heads
        halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
    if family in GEMMA and row.part == "norm":
        return array + np.float32(1)
    return array


def factors_of(inv_freq: torch.Tensor, base: float, dim: int) -> Array:
    """The table that divides the plain frequencies into `inv_freq`."""
    plain = 1.0 / base ** (torch.arange(0, dim, 2).float() / dim)
    return (plain / inv_freq).numpy()
