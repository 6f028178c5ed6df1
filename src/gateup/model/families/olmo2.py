"""OLMo 2: norms after attention and MLP instead of before, and over all heads' q and k."""

from __future__ import annotations

from gateup.model.families.base import Family
from gateup.model.families.gemma import SANDWICH_NAMES
from gateup.model.families.llama import GGUF_KEYS, DenseShape, builder
from gateup.model.families.qwen import config_of_qwen_gguf

OLMO2 = Family(
    model_type="olmo2",
    architectures=("Olmo2ForCausalLM",),
    names=SANDWICH_NAMES,
    build=builder(
        DenseShape(
            "olmo2",
            "Olmo2ForCausalLM",
            SANDWICH_NAMES,
            qkv_bias="attention_bias",
            o_bias="attention_bias",
            qk_norm="full",
            before=(),
            between=("post_attention_layernorm",),
            after=("post_feedforward_layernorm",),
        )
    ),
    gguf_arch="olmo2",
    gguf_keys=GGUF_KEYS,
    gguf_config=config_of_qwen_gguf,
)

FAMILIES = (OLMO2,)
