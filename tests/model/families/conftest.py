"""The oracle for tensor names and shapes: transformers' own classes, built without weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

Shapes = dict[str, tuple[int, ...]]


def _class_tensors(config: Mapping[str, Any]) -> Shapes:
    import torch
    import transformers

    cls = getattr(transformers, config["architectures"][0])
    with torch.device("meta"):
        model = cls(cls.config_class.from_dict(dict(config)))
    # named_parameters gives a tied head once, under the embedding's name.
    out = {name: tuple(p.shape) for name, p in model.named_parameters()}
    saved = model.state_dict().keys()
    out.update({name: tuple(b.shape) for name, b in model.named_buffers() if name in saved})
    return out


@pytest.fixture(scope="session")
def class_tensors() -> Callable[[Mapping[str, Any]], Shapes]:
    """config.json content -> {name: shape} of the parameters and persistent buffers of its class.

    The names are those of the module tree; where a release of transformers renames on saving,
    the test that compares says so.
    """
    return _class_tensors


_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 24,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def _like_llama(model_type: str, architecture: str, **changes: Any) -> dict[str, Any]:
    return {**_LLAMA, "architectures": [architecture], "model_type": model_type, **changes}


DENSE_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**_LLAMA, "attention_bias": True, "rope_scaling": {"rope_type": "llama3"}},
    "granite": _like_llama("granite", "GraniteForCausalLM", mlp_bias=True),
    "mistral": _like_llama("mistral", "MistralForCausalLM", head_dim=10, sliding_window=16),
    "smollm3": _like_llama("smollm3", "SmolLM3ForCausalLM", no_rope_layer_interval=2),
    "qwen2": _like_llama(
        "qwen2",
        "Qwen2ForCausalLM",
        use_sliding_window=True,
        sliding_window=16,
        max_window_layers=1,
    ),
    "qwen3": _like_llama("qwen3", "Qwen3ForCausalLM", head_dim=10, attention_bias=True),
    "gemma": _like_llama("gemma", "GemmaForCausalLM", head_dim=10, tie_word_embeddings=True),
    "gemma2": _like_llama(
        "gemma2", "Gemma2ForCausalLM", head_dim=10, sliding_window=16, tie_word_embeddings=True
    ),
    "gemma3_text": _like_llama(
        "gemma3_text", "Gemma3ForCausalLM", sliding_window=16, sliding_window_pattern=2
    ),
    "gemma3": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 24,
            "intermediate_size": 52,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", *["sliding_attention"] * 2],
        },
    },
    "phi3": _like_llama(
        "phi3",
        "Phi3ForCausalLM",
        rope_scaling={"type": "longrope", "long_factor": [1.0, 2.0], "short_factor": [1.0, 1.0]},
    ),
    "olmo2": _like_llama("olmo2", "Olmo2ForCausalLM"),
    "openelm": {
        "architectures": ["OpenELMForCausalLM"],
        "model_type": "openelm",
        "model_dim": 64,
        "num_transformer_layers": 4,
        "head_dim": 8,
        "num_gqa_groups": 2,
        "ffn_multipliers": [0.5, 4.0],
        "qkv_multipliers": [0.5, 1.0],
        "ffn_dim_divisor": 16,
        "normalize_qk_projections": True,
        "share_input_output_layers": True,
        "vocab_size": 97,
    },
    "nemotron-nas": {
        **_LLAMA,
        "architectures": ["DeciLMForCausalLM"],
        "model_type": "nemotron-nas",
        "intermediate_size": None,
        "num_key_value_heads": None,
        "block_configs": [
            {"attention": {"n_heads_in_group": 3}, "ffn": {"ffn_mult": 2.625}},
            {"attention": {"no_op": True}, "ffn": {"intermediate_size": 40}},
            {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
        ],
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": 24,
        "n_head": 4,
        "n_layer": 3,
        "n_positions": 31,
        "n_inner": 50,
        "vocab_size": 97,
    },
    "bert": {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": 24,
        "intermediate_size": 52,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 31,
        "vocab_size": 97,
    },
}


@pytest.fixture(scope="session")
def dense_configs() -> dict[str, dict[str, Any]]:
    """A tiny config.json of each dense family, by model_type. Copy before changing."""
    return DENSE_CONFIGS
