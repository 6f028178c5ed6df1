"""Qwen2-MoE (shared expert behind a sigmoid gate, biased q/k/v) and Qwen3-MoE (q/k norms)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateup.errors import UnknownArchitectureError
from gateup.model.config import Config
from gateup.model.families.base import (
    Family,
    Frame,
    GGUFTensor,
    Names,
    activation,
    gqa,
    num_experts,
    num_layers,
    top_k,
)
from gateup.model.families.llama import GGUF_KEYS
from gateup.model.families.moe import (
    PROJECTIONS,
    dense_and_moe,
    expert_names,
    merged_experts,
    moe_names,
    shared_names,
    sparse_layers,
    sparse_step_layers,
)
from gateup.model.families.windows import Windows, by_layer, window_size
from gateup.model.spec import GatedMLPSpec, LayerSpec, ModelSpec, MoESpec, TensorSpec

QWEN3_NAMES = moe_names(expert_names())
QWEN2_NAMES = moe_names(
    expert_names(),
    shared_names("mlp.shared_expert"),
    {
        "shared_expert_gate": Names(
            "model.layers.{i}.mlp.shared_expert_gate.weight",
            "blk.{i}.ffn_gate_inp_shexp.weight",
            megatron="decoder.layers.{i}.mlp.shared_experts.gate_weight",
        )
    },
)


def _windows(cfg: Config, layers: int, *, alternating: bool) -> Windows:
    """Off unless `use_sliding_window`. Qwen2-MoE: the even layers below `max_window_layers`."""
    if not cfg.flag("use_sliding_window", default=False):
        return [None] * layers
    size = window_size(cfg, default=4096)
    if not alternating:
        return [size] * layers
    limit = cfg.integer("max_window_layers", default=28, low=0)
    return by_layer(cfg, layers, size, lambda i: i % 2 == 0 and i < limit)


def _moe(cfg: Config, *, shared: bool) -> MoESpec:
    act = activation(cfg)
    experts = num_experts(cfg, "num_experts", "num_local_experts")
    shared_mlp = (
        GatedMLPSpec(cfg.integer("shared_expert_intermediate_size"), act) if shared else None
    )
    return MoESpec(
        experts,
        top_k(cfg, experts),
        GatedMLPSpec(cfg.integer("moe_intermediate_size"), act),
        shared=shared_mlp,
        shared_gate=shared,
    )


def builder(qwen2: bool) -> Callable[[Config, str], ModelSpec]:
    """Both generations; a layer is dense (`intermediate_size`) where the config says so."""

    def build(cfg: Config, name: str) -> ModelSpec:
        hidden = cfg.integer("hidden_size")
        vocab = cfg.integer("vocab_size")
        n = num_layers(cfg)
        moe = _moe(cfg, shared=qwen2)
        sparse = sparse_step_layers(cfg, n)
        dense = None
        if not all(sparse):
            dense = GatedMLPSpec(cfg.integer("intermediate_size"), activation(cfg))
        tied = cfg.flag("tie_word_embeddings", default=False)
        bias = (
            cfg.flag("qkv_bias", default=True)
            if qwen2
            else cfg.flag("attention_bias", default=False)
        )
        frame = Frame(
            "qwen2_moe" if qwen2 else "qwen3_moe",
            "Qwen2MoeForCausalLM" if qwen2 else "Qwen3MoeForCausalLM",
            QWEN2_NAMES if qwen2 else QWEN3_NAMES,
            hidden,
            vocab,
            tied,
        )
        rows = frame.rows()
        layers = []
        for i, window in enumerate(_windows(cfg, n, alternating=qwen2)):
            attn = gqa(cfg, hidden, window=window)
            mlp = moe if sparse[i] or dense is None else dense
            rows.norm("input_layernorm", hidden, i)
            rows.attention(i, hidden, attn, qkv_bias=bias, o_bias=bias and not qwen2)
            if not qwen2:
                rows.norm("q_norm", attn.head_dim, i)
                rows.norm("k_norm", attn.head_dim, i)
            rows.norm("post_attention_layernorm", hidden, i)
            dense_and_moe(rows, i, hidden, mlp)
            layers.append(LayerSpec(i, attn, mlp))
        return frame.finish(cfg, name, rows, layers)

    return build


def gguf_rule(spec: ModelSpec, row: TensorSpec) -> list[GGUFTensor] | None:
    """llama.cpp's Qwen MoE architectures have experts in every layer."""
    if row.role in PROJECTIONS:
        raise UnknownArchitectureError(
            f"layer {row.layer} has a dense MLP, which llama.cpp cannot hold in a Qwen MoE model",
            where=spec.name,
        )
    return merged_experts(spec, row)


def config_of_gguf(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], config: dict[str, Any]
) -> dict[str, Any]:
    """Biases and the layers without experts show in the tensors only; no window is written."""
    del metadata
    config["qkv_bias"] = "blk.0.attn_q.bias" in shapes
    config["attention_bias"] = "blk.0.attn_output.bias" in shapes
    layers = config.get("num_hidden_layers")
    sparse = set(sparse_layers(shapes, layers))
    if sparse and isinstance(layers, int):
        config["mlp_only_layers"] = [i for i in range(layers) if i not in sparse]
    return config


_KEYS = {
    **GGUF_KEYS,
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}

QWEN2_MOE = Family(
    model_type="qwen2_moe",
    architectures=("Qwen2MoeForCausalLM",),
    names=QWEN2_NAMES,
    build=builder(True),
    gguf_arch="qwen2moe",
    gguf_keys={**_KEYS, "expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
    gguf_rule=gguf_rule,
    gguf_config=config_of_gguf,
)

QWEN3_MOE = Family(
    model_type="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    names=QWEN3_NAMES,
    build=builder(False),
    gguf_arch="qwen3moe",
    gguf_keys=_KEYS,
    gguf_rule=gguf_rule,
    gguf_config=config_of_gguf,
)

FAMILIES = (QWEN2_MOE, QWEN3_MOE)
