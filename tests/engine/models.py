"""Tiny random models of transformers, of every family and kind of positions the engine runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gateup.engine.weights import MLPWeights, Weights
from gateup.ops.packed import dequantise

TINY: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_HEADS = {"head_dim": 16}
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_experts": 4}
_ORIGINAL = {"original_max_position_embeddings": 16}
_LONGROPE = {
    "original_max_position_embeddings": 16,
    "max_position_embeddings": 64,
    "rope_scaling": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.5],
        "long_factor": [2.0, 9.0],
        "partial_rotary_factor": 0.5,
    },
}

# name -> (model_type, what its config has beside TINY)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"mlp_bias": True, "attention_bias": True}),
    "llama, llama3 rope": (
        "llama",
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "rope_theta": 500.0,
                **_ORIGINAL,
            }
        },
    ),
    "llama, linear rope": (
        "llama",
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    ),
    "llama, dynamic rope": (
        "llama",
        {
            "max_position_embeddings": 16,
            "rope_scaling": {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 1e4},
        },
    ),
    "mistral": ("mistral", {"sliding_window": 8, **_HEADS}),
    "qwen2": (
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 8,
            "max_window_layers": 1,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, **_ORIGINAL},
        },
    ),
    "qwen3": ("qwen3", _HEADS),
    "gemma": ("gemma", _HEADS),
    "gemma2": ("gemma2", {**_HEADS, "sliding_window": 8, "query_pre_attn_scalar": 24}),
    "gemma3": (
        "gemma3_text",
        {
            **_HEADS,
            "sliding_window": 8,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 16,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "rope_theta": 1e6,
        },
    ),
    "phi3, short": ("phi3", {**_LONGROPE, "sliding_window": 12}),
    "phi3, long": ("phi3", _LONGROPE),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.5,
            "logits_scaling": 4.0,
        },
    ),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": ("qwen3_moe", {**_MOE, **_HEADS, "mlp_only_layers": [0]}),
    "qwen3_moe, normalised": ("qwen3_moe", {**_MOE, **_HEADS, "norm_topk_prob": True}),
}


def random_model(name: str, seed: int = 0) -> PreTrainedModel:
    """The model in float32, its weights large enough that no part of it is near nothing.

    With the standard 0.02 attention is uniform, every norm is 1 and every bias 0.
    """
    kind, changes = MODELS[name]
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**TINY, **changes})
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"  # the grouped product knows no float64
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.ndim > 1:
                p.normal_(0, p.shape[-1] ** -0.5)
            elif key.endswith("bias"):
                p.normal_(0, 0.3)
            else:
                p.add_(torch.randn_like(p) * 0.2)
    return model


def saved(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def ids_of(length: int, batch: int = 1, seed: int = 1) -> torch.Tensor:
    """[batch, length] token numbers."""
    return torch.randint(
        3, TINY["vocab_size"], (batch, length), generator=torch.Generator().manual_seed(seed)
    )


def hub_state(w: Weights) -> dict[str, torch.Tensor]:
    """A Llama's weights with tied embeddings, dequantised, by transformers' names."""
    state = {"model.embed_tokens.weight": dequantise(w.embed), "model.norm.weight": w.norm}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    for i, layer in enumerate(w.layers):
        head = f"model.layers.{i}."
        assert isinstance(layer.mlp, MLPWeights)
        for part in "qkvo":
            state[f"{head}self_attn.{part}_proj.weight"] = dequantise(getattr(layer, part))
        for part in ("gate", "up", "down"):
            state[f"{head}mlp.{part}_proj.weight"] = dequantise(getattr(layer.mlp, part))
        state[head + "input_layernorm.weight"] = layer.input_norm
        state[head + "post_attention_layernorm.weight"] = layer.mlp_norm
    return state
