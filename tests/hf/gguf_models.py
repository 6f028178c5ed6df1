"""Tiny models of transformers written as GGUFs, as llama.cpp's converter lays them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import quantize
from safetensors.torch import load_file
from transformers import PreTrainedModel

from gateup.files.checkpoint import open_model
from gateup.model.families import gguf_tensors
from gateup.model.spec import ModelSpec

Array = np.ndarray[Any, Any]

ARCH = {
    "llama": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "smollm3": "smollm3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
}
# Key under the architecture's name <- attribute of transformers' config.
KEYS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "context_length": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_ABOUT_LAYERS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


def write(model: PreTrainedModel, folder: Path, type_: str = "F32") -> Path:
    """The model as a GGUF in `folder`; matrices of the type, norms, biases and routers in F32."""
    model.save_pretrained(folder)
    spec = open_model(folder).spec
    hub = {name: t.numpy() for name, t in load_file(folder / "model.safetensors").items()}
    kind = model.config.model_type
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, ARCH[kind])
    _metadata(writer, model, ARCH[kind])
    for tensor in gguf_tensors(spec):
        if not tensor.rows:
            continue
        values = _laid_out(hub, spec, tensor, kind)
        wanted = gguf.GGMLQuantizationType[type_]
        if values.ndim < 2 or "ffn_gate_inp" in tensor.name or type_ == "F32":
            wanted = gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, quantize(values, wanted), raw_dtype=wanted)
    for name, table in _tables(model).items():
        writer.add_tensor(name, table.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(writer: gguf.GGUFWriter, model: PreTrainedModel, arch: str) -> None:
    config = model.config
    for key, name in KEYS.items():
        value = getattr(config, name, None)
        if isinstance(value, float):
            writer.add_float32(f"{arch}.{key}", value)
        elif value is not None:
            writer.add_uint32(f"{arch}.{key}", value)
    experts = getattr(config, "num_experts", getattr(config, "num_local_experts", None))
    if experts:
        writer.add_uint32(f"{arch}.expert_count", experts)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_uint32(f"{arch}.attention.key_length", head)
    writer.add_uint32(f"{arch}.attention.value_length", head)
    width = int(head * rope.get("partial_rotary_factor", 1.0))
    writer.add_uint32(f"{arch}.rope.dimension_count", width)
    writer.add_float32(f"{arch}.rope.freq_base", rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_string(f"{arch}.rope.scaling.type", rope["rope_type"])
        writer.add_float32(f"{arch}.rope.scaling.factor", rope["factor"])
    original = rope.get("original_max_position_embeddings")
    if original:
        writer.add_uint32(f"{arch}.rope.scaling.original_context_length", original)
    writer.add_uint32("tokenizer.ggml.bos_token_id", 1)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    writer.add_uint32("tokenizer.ggml.eot_token_id", 3)
    writer.add_uint32("tokenizer.ggml.padding_token_id", (1 << 32) - 1)


def _laid_out(hub: dict[str, Array], spec: ModelSpec, tensor: Any, kind: str) -> Array:
    row = tensor.rows[0]
    if "{e}" in row.name:
        values = np.stack([hub[row.name.replace("{e}", str(e))] for e in range(row.copies)])
    else:
        values = hub[row.name]
    attention = spec.layers[0].attention
    if kind in ("llama", "mixtral", "smollm3") and attention is not None:
        heads = {"q_proj": attention.num_heads, "k_proj": attention.num_kv_heads}
        count = heads.get(row.role.removesuffix(".bias"))
        if count:  # halves of a head become neighbours
            shape = values.shape
            values = values.reshape(count, 2, -1, *shape[1:]).swapaxes(1, 2).reshape(shape)
    if kind.startswith("gemma") and "norm" in row.role:
        values = values + 1
    if tensor.name.endswith("ffn_gate_inp_shexp.weight"):
        values = values.reshape(-1)
    return np.ascontiguousarray(values, dtype=np.float32)


def _tables(model: PreTrainedModel) -> dict[str, Array]:
    """Rotary factors, which llama.cpp keeps as tensors."""
    rope: dict[str, Any] = model.config.rope_parameters
    if rope.get("rope_type") == "llama3":
        width = model.model.rotary_emb.inv_freq.numel() * 2
        plain = rope["rope_theta"] ** -(torch.arange(0, width, 2).float() / width)
        return {"rope_freqs.weight": (plain / model.model.rotary_emb.inv_freq).numpy()}
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{k}.weight": np.array(rope[f"{k}_factor"]) for k in ("long", "short")
        }
    return {}
