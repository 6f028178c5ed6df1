"""The Llama lineage: pre-norm, grouped-query attention, split SwiGLU. Most families are this."""

from __future__ import annotations

from collections.abc import Callable

from gateup.model.config import Config
from gateup.model.families.base import (
    Family,
    GGUFTensor,
    Names,
    Rows,
    activation,
    assemble,
    gqa,
    num_layers,
    with_bias,
)
from gateup.model.spec import GatedMLPSpec, LayerSpec, ModelSpec

NAMES = with_bias(
    {
        "embed_tokens": Names(
            "model.embed_tokens.weight",
            "token_embd.weight",
            "tok_embeddings.weight",
            "embedding.word_embeddings.weight",
        ),
        "input_layernorm": Names(
            "model.layers.{i}.input_layernorm.weight",
            "blk.{i}.attn_norm.weight",
            "layers.{i}.attention_norm.weight",
            "decoder.layers.{i}.self_attention.linear_qkv.layer_norm_weight",
        ),
        "q_proj": Names(
            "model.layers.{i}.self_attn.q_proj.weight",
            "blk.{i}.attn_q.weight",
            "layers.{i}.attention.wq.weight",
        ),
        "k_proj": Names(
            "model.layers.{i}.self_attn.k_proj.weight",
            "blk.{i}.attn_k.weight",
            "layers.{i}.attention.wk.weight",
        ),
        "v_proj": Names(
            "model.layers.{i}.self_attn.v_proj.weight",
            "blk.{i}.attn_v.weight",
            "layers.{i}.attention.wv.weight",
        ),
        "o_proj": Names(
            "model.layers.{i}.self_attn.o_proj.weight",
            "blk.{i}.attn_output.weight",
            "layers.{i}.attention.wo.weight",
            "decoder.layers.{i}.self_attention.linear_proj.weight",
        ),
        "q_norm": Names("model.layers.{i}.self_attn.q_norm.weight", "blk.{i}.attn_q_norm.weight"),
        "k_norm": Names("model.layers.{i}.self_attn.k_norm.weight", "blk.{i}.attn_k_norm.weight"),
        "post_attention_layernorm": Names(
            "model.layers.{i}.post_attention_layernorm.weight",
            "blk.{i}.ffn_norm.weight",
            "layers.{i}.ffn_norm.weight",
            "decoder.layers.{i}.mlp.linear_fc1.layer_norm_weight",
        ),
        "gate_proj": Names(
            "model.layers.{i}.mlp.gate_proj.weight",
            "blk.{i}.ffn_gate.weight",
            "layers.{i}.feed_forward.w1.weight",
        ),
        "up_proj": Names(
            "model.layers.{i}.mlp.up_proj.weight",
            "blk.{i}.ffn_up.weight",
            "layers.{i}.feed_forward.w3.weight",
        ),
        "down_proj": Names(
            "model.layers.{i}.mlp.down_proj.weight",
            "blk.{i}.ffn_down.weight",
            "layers.{i}.feed_forward.w2.weight",
            "decoder.layers.{i}.mlp.linear_fc2.weight",
        ),
        "norm": Names(
            "model.norm.weight",
            "output_norm.weight",
            "norm.weight",
            "decoder.final_layernorm.weight",
        ),
        "lm_head": Names("lm_head.weight", "output.weight", "output.weight", "output_layer.weight"),
    }
)

GGUF_KEYS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "context_length": "max_position_embeddings",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}


def rope_freqs(spec: ModelSpec) -> list[GGUFTensor]:
    """llama.cpp's converter adds a table of head_dim/2 factors for Llama 3.1's rope scaling."""
    scaling = spec.config.get("rope_scaling") or spec.config.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, dict) else None
    attn = next((x.attention for x in spec.layers if x.attention), None)
    if kind != "llama3" or attn is None:
        return []
    return [GGUFTensor("rope_freqs.weight", (attn.head_dim // 2,), (), 0)]


def builder(
    model_type: str,
    architecture: str,
    *,
    qkv_bias: str | bool = False,
    o_bias: str | bool = False,
    mlp_bias: str | bool = False,
    tie: bool = False,
) -> Callable[[Config, str], ModelSpec]:
    """A plain Llama-shaped family. A bias given as a string is the config key that switches it."""

    def flag(cfg: Config, switch: str | bool) -> bool:
        return cfg.flag(switch, default=False) if isinstance(switch, str) else switch

    def build(cfg: Config, name: str) -> ModelSpec:
        hidden = cfg.integer("hidden_size")
        vocab = cfg.integer("vocab_size")
        attn = gqa(cfg, hidden, window=sliding_window(cfg))
        mlp = GatedMLPSpec(cfg.integer("intermediate_size"), activation(cfg), flag(cfg, mlp_bias))
        tied = cfg.flag("tie_word_embeddings", default=tie)
        rows = Rows(NAMES)
        rows.add("embed_tokens", (vocab, hidden), "embedding", matmul=False)
        layers = []
        for i in range(num_layers(cfg)):
            rows.norm("input_layernorm", hidden, i)
            rows.attention(i, hidden, attn, qkv_bias=flag(cfg, qkv_bias), o_bias=flag(cfg, o_bias))
            rows.norm("post_attention_layernorm", hidden, i)
            rows.gated_mlp(i, hidden, mlp)
            layers.append(LayerSpec(i, attn, mlp))
        rows.norm("norm", hidden)
        if not tied:
            rows.linear("lm_head", vocab, hidden, "head", None)
        return assemble(
            cfg,
            name,
            family=model_type,
            architecture=architecture,
            hidden_size=hidden,
            vocab_size=vocab,
            tie=tied,
            layers=layers,
            rows=rows,
        )

    return build


def sliding_window(cfg: Config) -> int | None:
    """The window, unless the config switches it off (Qwen2 writes one and does not use it)."""
    if not cfg.flag("use_sliding_window", default=True):
        return None
    window: int | None = cfg.integer("sliding_window", default=None, high=1 << 40)
    return window


LLAMA = Family(
    model_type="llama",
    architectures=("LlamaForCausalLM",),
    names=NAMES,
    build=builder(
        "llama",
        "LlamaForCausalLM",
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
    gguf_arch="llama",
    gguf_keys=GGUF_KEYS,
    gguf_extra=rope_freqs,
)

FAMILIES = (LLAMA,)
