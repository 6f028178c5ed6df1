"""DeepSeek-V2 and V3: latent attention, leading dense layers, routed plus shared experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateup.model.config import MAX_EXPERTS, Config
from gateup.model.families.base import (
    Family,
    Frame,
    GGUFTensor,
    Names,
    Rows,
    activation,
    num_experts,
    num_layers,
    top_k,
)
from gateup.model.families.llama import GGUF_KEYS
from gateup.model.families.moe import (
    dense_and_moe,
    expert_names,
    merged_experts,
    moe_names,
    shared_names,
    sparse_layers,
)
from gateup.model.spec import (
    AttentionSpec,
    GatedMLPSpec,
    LayerSpec,
    MLASpec,
    ModelSpec,
    MoESpec,
    Part,
    TensorSpec,
)

_ATTN = "model.layers.{i}.self_attn."

NAMES = moe_names(
    expert_names(),
    shared_names("mlp.shared_experts"),
    {
        "q_a_proj": Names(_ATTN + "q_a_proj.weight", "blk.{i}.attn_q_a.weight"),
        "q_a_layernorm": Names(_ATTN + "q_a_layernorm.weight", "blk.{i}.attn_q_a_norm.weight"),
        "q_b_proj": Names(_ATTN + "q_b_proj.weight", "blk.{i}.attn_q_b.weight"),
        "kv_a_proj_with_mqa": Names(
            _ATTN + "kv_a_proj_with_mqa.weight", "blk.{i}.attn_kv_a_mqa.weight"
        ),
        "kv_a_layernorm": Names(_ATTN + "kv_a_layernorm.weight", "blk.{i}.attn_kv_a_norm.weight"),
        # The name in GGUFs made before llama.cpp split it into attn_k_b and attn_v_b.
        "kv_b_proj": Names(_ATTN + "kv_b_proj.weight", "blk.{i}.attn_kv_b.weight"),
    },
    {
        "e_score_correction_bias": Names(
            "model.layers.{i}.mlp.gate.e_score_correction_bias", "blk.{i}.exp_probs_b.bias"
        )
    },
)
# Dense and sparse layers differ in Megatron's name for this norm, so neither is given.
NAMES["post_attention_layernorm"] = NAMES["post_attention_layernorm"]._replace(megatron=None)


# Set in the config of a GGUF from before April 2025, which has kv_b in one tensor.
WHOLE_KV_B = "gguf_whole_kv_b"


def mla(cfg: Config) -> AttentionSpec:
    """d_qk = nope + rope; every head has its own K and V once the latent is expanded."""
    latent = MLASpec(
        kv_lora_rank=cfg.integer("kv_lora_rank"),
        qk_nope_head_dim=cfg.integer("qk_nope_head_dim"),
        qk_rope_head_dim=cfg.integer("qk_rope_head_dim"),
        q_lora_rank=cfg.integer("q_lora_rank", default=None),
    )
    heads = cfg.integer("num_attention_heads")
    return AttentionSpec(
        heads,
        heads,
        latent.qk_nope_head_dim + latent.qk_rope_head_dim,
        cfg.integer("v_head_dim"),
        mla=latent,
    )


def add_mla(rows: Rows, layer: int, hidden: int, attn: AttentionSpec, bias: bool) -> None:
    """q (or q_a, norm, q_b), kv_a with the shared rope key, norm, kv_b, o."""
    latent = attn.mla
    assert latent is not None
    part: Part = "attention"
    q = attn.num_heads * attn.head_dim
    if latent.q_lora_rank is None:
        rows.linear("q_proj", q, hidden, part, layer)
    else:
        rows.linear("q_a_proj", latent.q_lora_rank, hidden, part, layer, bias=bias)
        rows.norm("q_a_layernorm", latent.q_lora_rank, layer)
        rows.linear("q_b_proj", q, latent.q_lora_rank, part, layer)
    cached = latent.kv_lora_rank + latent.qk_rope_head_dim
    rows.linear("kv_a_proj_with_mqa", cached, hidden, part, layer, bias=bias)
    rows.norm("kv_a_layernorm", latent.kv_lora_rank, layer)
    expanded = attn.num_heads * (latent.qk_nope_head_dim + attn.v_head_dim)
    rows.linear("kv_b_proj", expanded, latent.kv_lora_rank, part, layer)
    rows.linear("o_proj", hidden, attn.num_heads * attn.v_head_dim, part, layer, bias=bias)


def _moe(cfg: Config, mlp_bias: bool) -> MoESpec | None:
    """None where n_routed_experts is null: then every layer is dense."""
    if "n_routed_experts" in cfg.values and cfg.values["n_routed_experts"] is None:
        return None
    act = activation(cfg)
    experts = num_experts(cfg, "n_routed_experts", "num_experts")
    width = cfg.integer("moe_intermediate_size")
    shared = cfg.integer("n_shared_experts", default=0, low=0, high=MAX_EXPERTS)
    return MoESpec(
        experts,
        top_k(cfg, experts),
        GatedMLPSpec(width, act),
        shared=GatedMLPSpec(shared * width, act, mlp_bias) if shared else None,
    )


def _sparse(cfg: Config, layers: int) -> list[bool]:
    """From `first_k_dense_replace` on, those whose number `moe_layer_freq` divides."""
    first = cfg.integer("first_k_dense_replace", default=0, low=0)
    step = cfg.integer("moe_layer_freq", default=1)
    return [i >= first and i % step == 0 for i in range(layers)]


def _notes(cfg: Config, layers: int) -> tuple[str, ...]:
    extra = cfg.integer("num_nextn_predict_layers", "num_mtp_layers", default=0, low=0, high=1024)
    if not extra:
        return ()
    span = str(layers) if extra == 1 else f"{layers} to {layers + extra - 1}"
    return (
        f"multi-token prediction: the Hub file also holds layer {span}, "
        "which plain decoding does not use; it is not counted",
    )


def builder(v3: bool) -> Callable[[Config, str], ModelSpec]:
    """V2 and V3 differ in the router's correction bias (V3) and in mlp_bias (V2)."""

    def build(cfg: Config, name: str) -> ModelSpec:
        hidden = cfg.integer("hidden_size")
        vocab = cfg.integer("vocab_size")
        n = num_layers(cfg)
        attn = mla(cfg)
        bias = cfg.flag("attention_bias", default=False)
        mlp_bias = not v3 and cfg.flag("mlp_bias", default=False)
        moe = _moe(cfg, mlp_bias)
        sparse = _sparse(cfg, n) if moe else [False] * n
        dense = None
        if not all(sparse):
            dense = GatedMLPSpec(cfg.integer("intermediate_size"), activation(cfg), mlp_bias)
        tied = cfg.flag("tie_word_embeddings", default=False)
        frame = Frame(
            "deepseek_v3" if v3 else "deepseek_v2",
            "DeepseekV3ForCausalLM" if v3 else "DeepseekV2ForCausalLM",
            NAMES,
            hidden,
            vocab,
            tied,
        )
        rows = frame.rows()
        layers = []
        for i in range(n):
            mlp = moe if sparse[i] else dense
            assert mlp is not None
            rows.norm("input_layernorm", hidden, i)
            add_mla(rows, i, hidden, attn, bias)
            rows.norm("post_attention_layernorm", hidden, i)
            dense_and_moe(rows, i, hidden, mlp)
            if v3 and isinstance(mlp, MoESpec):
                rows.add(
                    "e_score_correction_bias",
                    (mlp.num_experts,),
                    "mlp",
                    i,
                    matmul=False,
                    buffer=True,
                )
            layers.append(LayerSpec(i, attn, mlp))
        return frame.finish(cfg, name, rows, layers, notes=_notes(cfg, n))

    return build


def gguf_rule(spec: ModelSpec, row: TensorSpec) -> list[GGUFTensor] | None:
    """kv_b [heads·(nope + v), latent] becomes k_b (transposed) and v_b, one matrix per head."""
    if row.role != "kv_b_proj":
        return merged_experts(spec, row)
    if spec.config.get(WHOLE_KV_B):
        return None
    assert row.layer is not None
    attn = spec.layers[row.layer].attention
    assert attn is not None
    assert attn.mla is not None
    rank, nope = attn.mla.kv_lora_rank, attn.mla.qk_nope_head_dim
    heads, v = attn.num_heads, attn.v_head_dim
    blk = f"blk.{row.layer}."
    return [
        GGUFTensor(blk + "attn_k_b.weight", (nope, rank, heads), (row,), nope * rank * heads),
        GGUFTensor(blk + "attn_v_b.weight", (rank, v, heads), (row,), rank * v * heads),
    ]


def config_of_gguf(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], config: dict[str, Any]
) -> dict[str, Any]:
    """Head widths and biases.

    Files with attn_k_b and attn_v_b give the expanded widths as key_length_mla and
    value_length_mla, and the latent's as key_length; older ones, with attn_kv_b, the expanded
    ones as key_length and value_length.
    """
    arch = "deepseek2."
    cfg = Config(metadata, "GGUF metadata")
    split = "_mla" if f"{arch}attention.key_length_mla" in metadata else ""
    d_qk = cfg.integer(f"{arch}attention.key_length{split}")
    rope = cfg.integer(f"{arch}rope.dimension_count", high=d_qk - 1)
    config["qk_rope_head_dim"] = rope
    config["qk_nope_head_dim"] = d_qk - rope
    config["v_head_dim"] = cfg.integer(f"{arch}attention.value_length{split}")
    # As MLA is computed there is one KV head; the expanded keys have as many as the queries.
    config["num_key_value_heads"] = config.get("num_attention_heads")
    config["attention_bias"] = "blk.0.attn_kv_a_mqa.bias" in shapes
    config["mlp_bias"] = "blk.0.ffn_down.bias" in shapes
    if "blk.0.attn_kv_b.weight" in shapes:
        config[WHOLE_KV_B] = True
    if not sparse_layers(shapes, config.get("num_hidden_layers")):
        config["n_routed_experts"] = None
    return config


_KEYS = {
    **{k: v for k, v in GGUF_KEYS.items() if k != "attention.key_length"},
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.q_lora_rank": "q_lora_rank",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
}


def _family(v3: bool) -> Family:
    return Family(
        model_type="deepseek_v3" if v3 else "deepseek_v2",
        architectures=("DeepseekV3ForCausalLM" if v3 else "DeepseekV2ForCausalLM",),
        names=NAMES,
        build=builder(v3),
        gguf_arch="deepseek2",
        gguf_keys=_KEYS,
        gguf_rule=gguf_rule,
        gguf_config=config_of_gguf,
    )


DEEPSEEK_V2 = _family(False)
DEEPSEEK_V3 = _family(True)

FAMILIES = (DEEPSEEK_V2, DEEPSEEK_V3)
