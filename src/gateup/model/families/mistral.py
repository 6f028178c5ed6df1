"""Mistral and SmolLM3: Llama's tensors, with windows or a tied head."""

from __future__ import annotations

from gateup.model.config import Config
from gateup.model.families.base import Family
from gateup.model.families.llama import (
    GGUF_KEYS,
    HUB_NAMES,
    NAMES,
    DenseShape,
    builder,
    config_of_llama_gguf,
    rope_freqs,
)
from gateup.model.families.windows import Windows, by_layer, window_size


def mistral_windows(cfg: Config, layers: int) -> Windows:
    """One window for all layers; the class's 4096 where the key is absent, none where it is null.

    Mistral-7B v0.1 writes 4096, everything since v0.2 null.
    """
    return by_layer(cfg, layers, window_size(cfg, default=4096), lambda i: True)


def smollm3_windows(cfg: Config, layers: int) -> Windows:
    """Where it is switched on, on the layers without rotary positions (every fourth)."""
    size = window_size(cfg) if cfg.flag("use_sliding_window", default=False) else None
    interval = cfg.integer("no_rope_layer_interval", default=4)
    rope = [(i + 1) % interval != 0 for i in range(layers)]
    if cfg.has("no_rope_layers"):
        rope = [bool(x) for x in cfg.integers("no_rope_layers", high=1)]
        if len(rope) < layers:
            raise cfg.fault("no_rope_layers", rope, f"an entry for each of {layers} layers")
    return by_layer(cfg, layers, size, lambda i: not rope[i])


MISTRAL = Family(
    model_type="mistral",
    architectures=("MistralForCausalLM",),
    names=NAMES,
    build=builder(
        DenseShape(
            "mistral",
            "MistralForCausalLM",
            windows=mistral_windows,
            required=("num_key_value_heads",),
        )
    ),
    gguf_arch="llama",  # llama.cpp files it under llama, without a window
    gguf_keys=GGUF_KEYS,
    gguf_extra=rope_freqs,
    gguf_config=config_of_llama_gguf,
)

SMOLLM3 = Family(
    model_type="smollm3",
    architectures=("SmolLM3ForCausalLM",),
    names=HUB_NAMES,
    build=builder(
        DenseShape(
            "smollm3",
            "SmolLM3ForCausalLM",
            HUB_NAMES,
            qkv_bias="attention_bias",
            o_bias="attention_bias",
            mlp_bias="mlp_bias",
            tie=True,
            windows=smollm3_windows,
            required=("num_key_value_heads",),
        )
    ),
    gguf_arch="smollm3",
    gguf_keys=GGUF_KEYS,
    gguf_extra=rope_freqs,
    gguf_config=config_of_llama_gguf,
)

FAMILIES = (MISTRAL, SMOLLM3)
