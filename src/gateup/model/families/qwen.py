"""Qwen2 and 2.5 (biases on q, k, v), Qwen3 (a norm on each head's query and key instead)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateup.model.config import Config
from gateup.model.families.base import Family
from gateup.model.families.llama import GGUF_KEYS, NAMES, DenseShape, builder, without
from gateup.model.families.windows import Windows, by_layer, window_size

QWEN_NAMES = without(NAMES, "meta")


def qwen_windows(cfg: Config, layers: int) -> Windows:
    """Off unless `use_sliding_window`; then on the layers from `max_window_layers` on.

    Most files write a window and do not use it.
    """
    size = window_size(cfg, default=4096)
    if not cfg.flag("use_sliding_window", default=False):
        size = None
    first = cfg.integer("max_window_layers", default=28, low=0)
    return by_layer(cfg, layers, size, lambda i: i >= first)


def config_of_qwen_gguf(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], config: dict[str, Any]
) -> dict[str, Any]:
    """Qwen3's optional biases show in the tensors only."""
    del metadata
    config["attention_bias"] = "blk.0.attn_output.bias" in shapes
    return config


QWEN2 = Family(
    model_type="qwen2",
    architectures=("Qwen2ForCausalLM",),
    names=QWEN_NAMES,
    build=builder(
        DenseShape(
            "qwen2",
            "Qwen2ForCausalLM",
            QWEN_NAMES,
            qkv_bias=True,
            windows=qwen_windows,
            required=("num_key_value_heads",),
        )
    ),
    gguf_arch="qwen2",
    gguf_keys=GGUF_KEYS,
)

QWEN3 = Family(
    model_type="qwen3",
    architectures=("Qwen3ForCausalLM",),
    names=QWEN_NAMES,
    build=builder(
        DenseShape(
            "qwen3",
            "Qwen3ForCausalLM",
            QWEN_NAMES,
            qkv_bias="attention_bias",
            o_bias="attention_bias",
            qk_norm="head",
            windows=qwen_windows,
            # 128 at every size published; some copies of the files leave it out.
            defaults={"head_dim": 128},
            required=("num_key_value_heads",),
        )
    ),
    gguf_arch="qwen3",
    gguf_keys=GGUF_KEYS,
    gguf_config=config_of_qwen_gguf,
)

FAMILIES = (QWEN2, QWEN3)
