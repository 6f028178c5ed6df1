"""Gemma 1, 2 and 3 (text): tanh-GELU, tied head, head_dim of its own; 2 and 3 norm both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateup.model.config import Config
from gateup.model.families.base import Family, GGUFTensor, Names, activation, with_bias
from gateup.model.families.llama import GGUF_KEYS, HUB_NAMES, DenseShape, builder
from gateup.model.families.windows import Windows, by_layer, window_size
from gateup.model.spec import Activation, ModelSpec, TensorSpec

# Layers of the two Gemmas of 27 billion: their query_pre_attn_scalar is hidden_size / num_heads,
# which no GGUF key says; every other size has head_dim. [source: llama.cpp, which goes by the same]
GEMMA_27B_LAYERS: Mapping[str, int] = {"gemma2": 46, "gemma3_text": 62}
# attn_logit_softcapping and final_logit_softcapping of Gemma 2 where nobody says. [source: the
# config class of transformers; llama.cpp]
GEMMA2_SOFTCAPS = (50.0, 30.0)

SANDWICH_NAMES = HUB_NAMES | with_bias(
    {
        "post_attention_layernorm": Names(
            "model.layers.{i}.post_attention_layernorm.weight",
            "blk.{i}.post_attention_norm.weight",
        ),
        "pre_feedforward_layernorm": Names(
            "model.layers.{i}.pre_feedforward_layernorm.weight", "blk.{i}.ffn_norm.weight"
        ),
        "post_feedforward_layernorm": Names(
            "model.layers.{i}.post_feedforward_layernorm.weight", "blk.{i}.post_ffw_norm.weight"
        ),
    }
)


def gemma_activation(cfg: Config) -> Activation:
    """`hidden_activation` where it is set; else tanh-GELU, whatever `hidden_act` says.

    The first Gemma files say "gelu" and mean the tanh form they were trained with.
    """
    activation(cfg, "hidden_act", default="gelu_pytorch_tanh")  # an unknown name is still a fault
    return activation(cfg, "hidden_activation", default="gelu_pytorch_tanh")


def gemma2_windows(cfg: Config, layers: int) -> Windows:
    """Every other layer, beginning with the first; 4096 where the key is absent."""
    return by_layer(cfg, layers, window_size(cfg, default=4096), lambda i: i % 2 == 0)


def gemma3_windows(cfg: Config, layers: int) -> Windows:
    """All but every sixth layer (`sliding_window_pattern`); 4096 where the key is absent."""
    pattern = cfg.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
    size = window_size(cfg, default=4096)
    if size is not None and cfg.flag("use_bidirectional_attention", default=False):
        size = size // 2 + 1  # the width counts both sides of a token
    return by_layer(cfg, layers, size, lambda i: (i + 1) % pattern != 0)


def _no_head(spec: ModelSpec, row: TensorSpec) -> list[GGUFTensor] | None:
    """llama.cpp's Gemma and Gemma 2 have no output tensor: a head of its own is dropped."""
    del spec
    return [] if row.role == "lm_head" else None


def config_of_gemma_gguf(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], config: dict[str, Any]
) -> dict[str, Any]:
    """Biases by their tensors; no window in the metadata means none in the model."""
    del metadata
    config["attention_bias"] = "blk.0.attn_output.bias" in shapes
    config.setdefault("sliding_window", None)
    return config


_GEMMA = DenseShape(
    "gemma",
    "GemmaForCausalLM",
    HUB_NAMES,
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    tie=True,
    act=gemma_activation,
    defaults={"head_dim": 256},
    required=("num_key_value_heads",),
)
_GEMMA2 = replace(
    _GEMMA,
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    names=SANDWICH_NAMES,
    between=("post_attention_layernorm", "pre_feedforward_layernorm"),
    after=("post_feedforward_layernorm",),
    windows=gemma2_windows,
)
# The 4B, 12B and 27B files hold only what differs from their class: 4B has neither head counts
# nor a vocabulary size.
_GEMMA3 = replace(
    _GEMMA2,
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    qk_norm="head",
    windows=gemma3_windows,
    defaults={
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
    },
    required=(),
)
_build_gemma3_text_part = builder(
    replace(_GEMMA3, model_type="gemma3", architecture="Gemma3ForConditionalGeneration")
)


# Keys of the whole file that hold for its language model too.
_OUTER_KEYS = (
    *("architectures", "torch_dtype", "dtype", "tie_word_embeddings"),
    "quantization_config",
)


def _build_gemma3(cfg: Config, name: str) -> ModelSpec:
    """The language model of an image-and-text Gemma 3, from its nested `text_config`."""
    text = cfg.sub("text_config")
    outer = {key: cfg.values[key] for key in _OUTER_KEYS if cfg.values.get(key) is not None}
    spec = _build_gemma3_text_part(Config({**outer, **text.values}, text.where), name)
    return replace(
        spec,
        notes=(
            *spec.notes,
            "text part only: the vision tower and its projector are not counted",
        ),
    )


GEMMA = Family(
    model_type="gemma",
    architectures=("GemmaForCausalLM",),
    names=HUB_NAMES,
    build=builder(_GEMMA),
    gguf_arch="gemma",
    gguf_keys=GGUF_KEYS,
    gguf_rule=_no_head,
    gguf_config=config_of_gemma_gguf,
)
GEMMA2 = Family(
    model_type="gemma2",
    architectures=("Gemma2ForCausalLM",),
    names=SANDWICH_NAMES,
    build=builder(_GEMMA2),
    gguf_arch="gemma2",
    gguf_keys=GGUF_KEYS,
    gguf_rule=_no_head,
    gguf_config=config_of_gemma_gguf,
)
GEMMA3_TEXT = Family(
    model_type="gemma3_text",
    architectures=("Gemma3ForCausalLM",),
    names=SANDWICH_NAMES,
    build=builder(_GEMMA3),
    gguf_arch="gemma3",
    gguf_keys=GGUF_KEYS,
    gguf_config=config_of_gemma_gguf,
)
GEMMA3 = Family(
    model_type="gemma3",
    architectures=("Gemma3ForConditionalGeneration",),
    names=SANDWICH_NAMES,
    build=_build_gemma3,
    gguf_arch="gemma3",
    gguf_keys=GGUF_KEYS,
    gguf_config=config_of_gemma_gguf,
)

FAMILIES = (GEMMA, GEMMA2, GEMMA3_TEXT, GEMMA3)
