"""Mixtral: every layer sparse, experts named w1 (gate), w3 (up), w2 (down) on the Hub."""

from __future__ import annotations

from gateup.model.config import Config
from gateup.model.families.base import (
    Family,
    Frame,
    Names,
    activation,
    gqa,
    num_experts,
    num_layers,
    top_k,
)
from gateup.model.families.llama import GGUF_KEYS, config_of_llama_gguf, rope_freqs
from gateup.model.families.moe import add_moe, expert_names, merged_experts, moe_names
from gateup.model.families.windows import window_size
from gateup.model.spec import GatedMLPSpec, LayerSpec, ModelSpec, MoESpec

_WEIGHTS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def _names() -> dict[str, Names]:
    table = expert_names("block_sparse_moe")
    table["router"] = table["router"]._replace(meta="layers.{i}.feed_forward.gate.weight")
    for role, w in _WEIGHTS.items():
        table["experts." + role] = table["experts." + role]._replace(
            hf=f"model.layers.{{i}}.block_sparse_moe.experts.{{e}}.{w}.weight",
            meta=f"layers.{{i}}.feed_forward.experts.{{e}}.{w}.weight",
        )
    return moe_names(table, meta=True)


NAMES = _names()


def build(cfg: Config, name: str) -> ModelSpec:
    """Expert width is `intermediate_size`; there is no dense layer and no shared expert."""
    hidden = cfg.integer("hidden_size")
    vocab = cfg.integer("vocab_size")
    attn = gqa(cfg, hidden, window=window_size(cfg))
    experts = num_experts(cfg, "num_local_experts", "num_experts")
    moe = MoESpec(
        experts,
        top_k(cfg, experts),
        GatedMLPSpec(cfg.integer("intermediate_size"), activation(cfg)),
    )
    tied = cfg.flag("tie_word_embeddings", default=False)
    frame = Frame("mixtral", "MixtralForCausalLM", NAMES, hidden, vocab, tied)
    rows = frame.rows()
    layers = []
    for i in range(num_layers(cfg)):
        rows.norm("input_layernorm", hidden, i)
        rows.attention(i, hidden, attn)
        rows.norm("post_attention_layernorm", hidden, i)
        add_moe(rows, i, hidden, moe)
        layers.append(LayerSpec(i, attn, moe))
    return frame.finish(cfg, name, rows, layers)


MIXTRAL = Family(
    model_type="mixtral",
    architectures=("MixtralForCausalLM",),
    names=NAMES,
    build=build,
    gguf_arch="llama",
    gguf_keys={
        **GGUF_KEYS,
        "expert_count": "num_local_experts",
        "expert_used_count": "num_experts_per_tok",
    },
    gguf_rule=merged_experts,
    gguf_extra=rope_freqs,
    gguf_config=config_of_llama_gguf,
)

FAMILIES = (MIXTRAL,)
