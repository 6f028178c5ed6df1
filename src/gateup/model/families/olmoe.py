"""OLMoE: every layer sparse, q and k normed over their full width."""

from __future__ import annotations

from gateup.model.config import Config
from gateup.model.families.base import (
    Family,
    Frame,
    activation,
    gqa,
    num_experts,
    num_layers,
    top_k,
)
from gateup.model.families.llama import GGUF_KEYS, config_of_llama_gguf
from gateup.model.families.moe import add_moe, expert_names, merged_experts, moe_names
from gateup.model.spec import GatedMLPSpec, LayerSpec, ModelSpec, MoESpec

NAMES = moe_names(expert_names())


def build(cfg: Config, name: str) -> ModelSpec:
    """Expert width is `intermediate_size`; norms span all heads, not one head_dim."""
    hidden = cfg.integer("hidden_size")
    vocab = cfg.integer("vocab_size")
    attn = gqa(cfg, hidden)
    experts = num_experts(cfg, "num_experts", "num_local_experts")
    moe = MoESpec(
        experts,
        top_k(cfg, experts),
        GatedMLPSpec(cfg.integer("intermediate_size"), activation(cfg)),
    )
    bias = cfg.flag("attention_bias", default=False)
    tied = cfg.flag("tie_word_embeddings", default=False)
    frame = Frame("olmoe", "OlmoeForCausalLM", NAMES, hidden, vocab, tied)
    rows = frame.rows()
    layers = []
    for i in range(num_layers(cfg)):
        rows.norm("input_layernorm", hidden, i)
        rows.attention(i, hidden, attn, qkv_bias=bias, o_bias=bias)
        rows.norm("q_norm", attn.num_heads * attn.head_dim, i)
        rows.norm("k_norm", attn.num_kv_heads * attn.head_dim, i)
        rows.norm("post_attention_layernorm", hidden, i)
        add_moe(rows, i, hidden, moe)
        layers.append(LayerSpec(i, attn, moe))
    return frame.finish(cfg, name, rows, layers)


OLMOE = Family(
    model_type="olmoe",
    architectures=("OlmoeForCausalLM",),
    names=NAMES,
    build=build,
    gguf_arch="olmoe",
    gguf_keys={
        **GGUF_KEYS,
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
    },
    gguf_rule=merged_experts,
    gguf_config=config_of_llama_gguf,
)

FAMILIES = (OLMOE,)
