"""The Llama lineage: pre-norm, grouped-query attention, split SwiGLU. Most families are this.

`DenseShape` says what sets one such family apart, `builder` turns it into the family's build
function; the other modules of this package declare theirs with the same two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gateup.model.config import MAX_DIM, Config
from gateup.model.families.base import (
    Family,
    Frame,
    GGUFTensor,
    Names,
    NameTable,
    Rows,
    activation,
    gqa,
    num_layers,
    with_bias,
)
from gateup.model.families.windows import WindowRule, no_windows
from gateup.model.layout import SPLIT, GateUpLayout
from gateup.model.spec import Activation, AttentionSpec, GatedMLPSpec, LayerSpec, ModelSpec

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
            "decoder.layers.{i}.self_attention.linear_qkv.weight",
        ),
        "k_proj": Names(
            "model.layers.{i}.self_attn.k_proj.weight",
            "blk.{i}.attn_k.weight",
            "layers.{i}.attention.wk.weight",
            "decoder.layers.{i}.self_attention.linear_qkv.weight",
        ),
        "v_proj": Names(
            "model.layers.{i}.self_attn.v_proj.weight",
            "blk.{i}.attn_v.weight",
            "layers.{i}.attention.wv.weight",
            "decoder.layers.{i}.self_attention.linear_qkv.weight",
        ),
        "o_proj": Names(
            "model.layers.{i}.self_attn.o_proj.weight",
            "blk.{i}.attn_output.weight",
            "layers.{i}.attention.wo.weight",
            "decoder.layers.{i}.self_attention.linear_proj.weight",
        ),
        "q_norm": Names(
            "model.layers.{i}.self_attn.q_norm.weight",
            "blk.{i}.attn_q_norm.weight",
            None,
            "decoder.layers.{i}.self_attention.q_layernorm.weight",
        ),
        "k_norm": Names(
            "model.layers.{i}.self_attn.k_norm.weight",
            "blk.{i}.attn_k_norm.weight",
            None,
            "decoder.layers.{i}.self_attention.k_layernorm.weight",
        ),
        "post_attention_layernorm": Names(
            "model.layers.{i}.post_attention_layernorm.weight",
            "blk.{i}.ffn_norm.weight",
            "layers.{i}.ffn_norm.weight",
            "decoder.layers.{i}.mlp.linear_fc1.layer_norm_weight",
        ),
        # Megatron's linear_fc1 holds gate and up one after the other, gate first.
        "gate_proj": Names(
            "model.layers.{i}.mlp.gate_proj.weight",
            "blk.{i}.ffn_gate.weight",
            "layers.{i}.feed_forward.w1.weight",
            "decoder.layers.{i}.mlp.linear_fc1.weight",
        ),
        "up_proj": Names(
            "model.layers.{i}.mlp.up_proj.weight",
            "blk.{i}.ffn_up.weight",
            "layers.{i}.feed_forward.w3.weight",
            "decoder.layers.{i}.mlp.linear_fc1.weight",
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


def without(table: NameTable, *dialects: Literal["meta", "megatron"]) -> dict[str, Names]:
    """The table without names in dialects the family was never published in."""
    blank: dict[str, Any] = dict.fromkeys(dialects)
    return {role: names._replace(**blank) for role, names in table.items()}


HUB_NAMES = without(NAMES, "meta", "megatron")

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


def llama_width(
    hidden_size: int, *, multiple_of: int = 256, ffn_dim_multiplier: float = 1.0
) -> int:
    """I by the rule of Meta's own files: two thirds of 4H, scaled, rounded up to `multiple_of`.

    multiple_of · ceil(int(ffn_dim_multiplier · int(8H/3)) / multiple_of): H = 4096 gives 11008.
    """
    width = int(ffn_dim_multiplier * (8 * hidden_size // 3))
    return -(-width // multiple_of) * multiple_of


def rope_scaling(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rope settings under either of their keys; {} where there are none."""
    for key in ("rope_scaling", "rope_parameters"):
        found = config.get(key)
        if isinstance(found, Mapping):
            return found
    return {}


def rope_freqs(spec: ModelSpec) -> list[GGUFTensor]:
    """llama.cpp's converter adds a table of head_dim/2 factors for Llama 3.1's rope scaling."""
    scaling = rope_scaling(spec.config)
    kind = scaling.get("rope_type", scaling.get("type"))
    attn = next((x.attention for x in spec.layers if x.attention), None)
    if kind != "llama3" or attn is None:
        return []
    # The converter counts every second dimension: ceil for an odd width.
    return [GGUFTensor("rope_freqs.weight", ((attn.head_dim + 1) // 2,), (), 0)]


def config_of_llama_gguf(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], config: dict[str, Any]
) -> dict[str, Any]:
    """What a Llama-shaped GGUF shows by its tensors only: biases, and Llama 3.1's rope table."""
    del metadata
    config["attention_bias"] = "blk.0.attn_output.bias" in shapes
    config["mlp_bias"] = "blk.0.ffn_down.bias" in shapes
    if "rope_freqs.weight" in shapes:
        config["rope_scaling"] = {"rope_type": "llama3"}
    return config


@dataclass(frozen=True)
class DenseShape:
    """What sets one Llama-shaped family apart from the next.

    qkv_bias, o_bias, mlp_bias  fixed, or the config key that switches them
    tie       whether the head is the embedding where the config does not say
    qk_norm   norms on queries and keys: one of width head_dim for all heads, or over all heads
    before, between, after  roles of the norms before attention, between attention and MLP, after
    fused     q, k, v in one tensor and gate, up in another (gate rows first)
    defaults  the config class's values that published files leave out
    required  keys whose class default fits one size of model only: their absence is an error
    """

    model_type: str
    architecture: str
    names: NameTable = field(default_factory=lambda: NAMES)
    qkv_bias: str | bool = False
    o_bias: str | bool = False
    mlp_bias: str | bool = False
    tie: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    before: tuple[str, ...] = ("input_layernorm",)
    between: tuple[str, ...] = ("post_attention_layernorm",)
    after: tuple[str, ...] = ()
    fused: bool = False
    act: Callable[[Config], Activation] = activation
    windows: WindowRule = no_windows
    defaults: Mapping[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()


def _switch(cfg: Config, switch: str | bool) -> bool:
    return bool(cfg.flag(switch, default=False)) if isinstance(switch, str) else switch


def builder(shape: DenseShape) -> Callable[[Config, str], ModelSpec]:
    """The build function of a Llama-shaped family."""

    def build(cfg: Config, name: str) -> ModelSpec:
        cfg = cfg.with_defaults(shape.defaults)
        for key in shape.required:
            if key not in cfg.values:
                raise cfg.missing(key)
        hidden = cfg.integer("hidden_size")
        vocab = cfg.integer("vocab_size")
        tied = cfg.flag("tie_word_embeddings", default=shape.tie)
        # A fused gate_up_proj has 2I rows, which must stay a legal dimension.
        width = cfg.integer("intermediate_size", high=MAX_DIM // 2 if shape.fused else MAX_DIM)
        layout = GateUpLayout("concat", "gate_up") if shape.fused else SPLIT
        mlp = GatedMLPSpec(width, shape.act(cfg), _switch(cfg, shape.mlp_bias), layout)
        attn = gqa(cfg, hidden)
        biases = (_switch(cfg, shape.qkv_bias), _switch(cfg, shape.o_bias))
        frame = Frame(shape.model_type, shape.architecture, shape.names, hidden, vocab, tied)
        rows = frame.rows()
        layers = []
        variants: dict[int | None, AttentionSpec] = {}
        for i, window in enumerate(shape.windows(cfg, num_layers(cfg))):
            attention = variants.setdefault(window, replace(attn, window=window))
            _layer(rows, shape, i, hidden, attention, mlp, biases)
            layers.append(LayerSpec(i, attention, mlp))
        return frame.finish(cfg, name, rows, layers)

    return build


def _layer(
    rows: Rows,
    shape: DenseShape,
    i: int,
    hidden: int,
    attn: AttentionSpec,
    mlp: GatedMLPSpec,
    biases: tuple[bool, bool],
) -> None:
    """The rows of one decoder layer, in the order of the forward pass."""
    for role in shape.before:
        rows.norm(role, hidden, i)
    q, k = attn.num_heads * attn.head_dim, attn.num_kv_heads * attn.head_dim
    if shape.fused:
        rows.linear("qkv_proj", q + 2 * k, hidden, "attention", i, bias=biases[0])
        rows.linear("o_proj", hidden, q, "attention", i, bias=biases[1])
    else:
        rows.attention(i, hidden, attn, qkv_bias=biases[0], o_bias=biases[1])
    if shape.qk_norm == "head":
        rows.norm("q_norm", attn.head_dim, i)
        rows.norm("k_norm", attn.head_dim, i)
    elif shape.qk_norm == "full":
        rows.norm("q_norm", q, i)
        rows.norm("k_norm", k, i)
    for role in shape.between:
        rows.norm(role, hidden, i)
    if shape.fused:
        width = mlp.intermediate_size
        rows.linear("gate_up_proj", 2 * width, hidden, "mlp", i, bias=mlp.bias)
        rows.linear("down_proj", hidden, width, "mlp", i, bias=mlp.bias)
    else:
        rows.gated_mlp(i, hidden, mlp)
    for role in shape.after:
        rows.norm(role, hidden, i)


LLAMA = Family(
    model_type="llama",
    architectures=("LlamaForCausalLM", "LLaMAForCausalLM"),  # the second: conversions of early 2023
    names=NAMES,
    build=builder(
        DenseShape(
            "llama",
            "LlamaForCausalLM",
            qkv_bias="attention_bias",
            o_bias="attention_bias",
            mlp_bias="mlp_bias",
        )
    ),
    gguf_arch="llama",
    gguf_keys=GGUF_KEYS,
    gguf_extra=rope_freqs,
    gguf_config=config_of_llama_gguf,
)

GRANITE = Family(
    model_type="granite",
    architectures=("GraniteForCausalLM",),
    names=HUB_NAMES,
    build=builder(
        DenseShape(
            "granite",
            "GraniteForCausalLM",
            HUB_NAMES,
            qkv_bias="attention_bias",
            o_bias="attention_bias",
            mlp_bias="mlp_bias",
        )
    ),
    gguf_arch="granite",
    gguf_keys=GGUF_KEYS,
    gguf_config=config_of_llama_gguf,
)

FAMILIES = (LLAMA, GRANITE)
