"""Families with a width per layer: OpenELM (growing with depth), DeciLM and Nemotron (searched).

DeciLM layers may lack attention, or the MLP, or both, or have one matrix in the place of either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateup.errors import ConfigError, UnknownArchitectureError
from gateup.model.config import MAX_DIM, Config
from gateup.model.families.base import (
    Family,
    Frame,
    GGUFTensor,
    Names,
    activation,
    num_layers,
    with_bias,
)
from gateup.model.families.llama import GGUF_KEYS, HUB_NAMES, config_of_llama_gguf, rope_freqs
from gateup.model.layout import GateUpLayout
from gateup.model.spec import AttentionSpec, GatedMLPSpec, LayerSpec, ModelSpec, TensorSpec

# ---- OpenELM -----------------------------------------------------------------------------------

OPENELM_NAMES = with_bias(
    {
        "embed_tokens": Names("transformer.token_embeddings.weight", "token_embd.weight"),
        "input_layernorm": Names(
            "transformer.layers.{i}.attn_norm.weight", "blk.{i}.attn_norm.weight"
        ),
        "qkv_proj": Names("transformer.layers.{i}.attn.qkv_proj.weight", "blk.{i}.attn_qkv.weight"),
        "q_norm": Names("transformer.layers.{i}.attn.q_norm.weight", "blk.{i}.attn_q_norm.weight"),
        "k_norm": Names("transformer.layers.{i}.attn.k_norm.weight", "blk.{i}.attn_k_norm.weight"),
        "o_proj": Names(
            "transformer.layers.{i}.attn.out_proj.weight", "blk.{i}.attn_output.weight"
        ),
        "post_attention_layernorm": Names(
            "transformer.layers.{i}.ffn_norm.weight", "blk.{i}.ffn_norm.weight"
        ),
        "gate_up_proj": Names("transformer.layers.{i}.ffn.proj_1.weight"),  # two tensors in a GGUF
        "down_proj": Names("transformer.layers.{i}.ffn.proj_2.weight", "blk.{i}.ffn_down.weight"),
        "norm": Names("transformer.norm.weight", "output_norm.weight"),
        "lm_head": Names("lm_head.weight"),  # llama.cpp knows tied OpenELM only
    }
)


def make_divisible(value: float, divisor: int) -> int:
    """The nearest multiple of `divisor`, at least one of it and never more than 10% below."""
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * value else rounded


def _multipliers(cfg: Config, key: str, layers: int) -> list[float]:
    """One factor per layer: a number for all, two ends of a straight line, or a full list."""
    value = cfg.raw(key)
    if value is None:
        raise cfg.missing(key)
    if not isinstance(value, list | tuple):
        return [cfg.check_number(key, value, low=1e-6)] * layers
    if len(value) not in (2, layers):
        raise cfg.fault(key, value, f"a number, or a list of 2 or of {layers} numbers")
    numbers = [cfg.check_number(f"{key}[{i}]", v, low=1e-6) for i, v in enumerate(value)]
    if len(value) == layers:
        return numbers
    first, last = numbers
    steps = max(layers - 1, 1)
    return [round(first + (last - first) * i / steps, 2) for i in range(layers)]


def _width(cfg: Config, key: str, value: float, divisor: int, high: int) -> int:
    """make_divisible within the range of dimensions."""
    if value > high:
        raise cfg.fault(key, value, f"a width of at most {high}")
    return cfg.check_int(key, make_divisible(value, divisor), high=high)


def _openelm_attention(cfg: Config, layers: int, hidden: int) -> list[AttentionSpec]:
    """Head counts per layer: the lists where they are written, else from the multipliers."""
    head_dim = cfg.integer("head_dim")
    groups = cfg.integer("num_gqa_groups", default=1)
    if cfg.has("num_query_heads"):
        heads = cfg.integers("num_query_heads", length=layers, low=1)
    else:
        unit = head_dim * groups
        heads = [
            _width(cfg, "qkv_multipliers", hidden * m, unit, MAX_DIM) // head_dim
            for m in _multipliers(cfg, "qkv_multipliers", layers)
        ]
    if cfg.has("num_kv_heads"):
        kv = cfg.integers("num_kv_heads", length=layers, low=1)
    else:
        kv = [max(h // groups, 1) for h in heads]
    for i, (h, k) in enumerate(zip(heads, kv, strict=True)):
        if h % k:
            raise ConfigError(
                f"layer {i} has {h} query heads and {k} KV heads",
                where=f"{cfg.where}, field num_kv_heads[{i}]",
                expected="each KV head to serve the same number of query heads",
            )
    return [AttentionSpec(h, k, head_dim, head_dim) for h, k in zip(heads, kv, strict=True)]


def _openelm_widths(cfg: Config, layers: int, hidden: int) -> list[int]:
    """I of each layer."""
    if not cfg.flag("ffn_with_glu", default=True):
        raise cfg.fault("ffn_with_glu", False, "true, as in every published OpenELM")
    divisor = cfg.integer("ffn_dim_divisor", default=256)
    return [
        _width(cfg, "ffn_multipliers", hidden * m, divisor, MAX_DIM // 2)
        for m in _multipliers(cfg, "ffn_multipliers", layers)
    ]


def _build_openelm(cfg: Config, name: str) -> ModelSpec:
    hidden = cfg.integer("model_dim")
    vocab = cfg.integer("vocab_size")
    n = num_layers(cfg, "num_transformer_layers")
    act = activation(cfg, "activation_fn_name", default="swish")
    tied = cfg.flag("share_input_output_layers")
    qk_norm = cfg.flag("normalize_qk_projections")
    attentions = _openelm_attention(cfg, n, hidden)
    widths = _openelm_widths(cfg, n, hidden)
    frame = Frame("openelm", "OpenELMForCausalLM", OPENELM_NAMES, hidden, vocab, tied)
    rows = frame.rows()
    layers = []
    for i, (attn, width) in enumerate(zip(attentions, widths, strict=True)):
        mlp = GatedMLPSpec(width, act, layout=GateUpLayout("concat", "gate_up"))
        q = attn.num_heads * attn.head_dim
        qkv = q + 2 * attn.num_kv_heads * attn.head_dim
        rows.norm("input_layernorm", hidden, i)
        rows.linear("qkv_proj", qkv, hidden, "attention", i)
        if qk_norm:
            rows.norm("q_norm", attn.head_dim, i)
            rows.norm("k_norm", attn.head_dim, i)
        rows.linear("o_proj", hidden, q, "attention", i)
        rows.norm("post_attention_layernorm", hidden, i)
        rows.linear("gate_up_proj", 2 * width, hidden, "mlp", i)
        rows.linear("down_proj", hidden, width, "mlp", i)
        layers.append(LayerSpec(i, attn, mlp))
    return frame.finish(
        cfg,
        name,
        rows,
        layers,
        max_positions=cfg.integer("max_context_length", default=None, high=1 << 40),
    )


def _openelm_gguf(spec: ModelSpec, row: TensorSpec) -> list[GGUFTensor] | None:
    """proj_1 becomes ffn_gate and ffn_up."""
    if row.role == "lm_head":
        raise UnknownArchitectureError(
            "llama.cpp's OpenELM has no output head of its own", where=spec.name
        )
    if row.role != "gate_up_proj":
        return None
    width, hidden = row.shape[0] // 2, row.shape[1]
    return [
        GGUFTensor(f"blk.{row.layer}.{half}.weight", (hidden, width), (row,), width * hidden)
        for half in ("ffn_gate", "ffn_up")
    ]


def _per_layer(value: Any, layers: Any) -> Any:
    """GGUF writes one number where all layers agree; config.json wants the list."""
    if isinstance(value, int) and isinstance(layers, int) and 0 < layers <= 4096:
        return [value] * layers
    return list(value) if isinstance(value, list | tuple) else value


def _config_of_openelm_gguf(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], config: dict[str, Any]
) -> dict[str, Any]:
    """Widths are written out in a GGUF: multipliers that give them back, exact with divisor 1."""
    del metadata
    layers, hidden = config.get("num_transformer_layers"), config.get("model_dim")
    for key in ("num_query_heads", "num_kv_heads"):
        config[key] = _per_layer(config.get(key), layers)
    widths = _per_layer(config.pop("intermediate_size", None), layers)
    if isinstance(widths, list) and isinstance(hidden, int) and hidden > 0:
        config["ffn_dim_divisor"] = 1
        config["ffn_multipliers"] = [w / hidden if isinstance(w, int) else w for w in widths]
    config["normalize_qk_projections"] = "blk.0.attn_q_norm.weight" in shapes
    config["share_input_output_layers"] = True
    return config


OPENELM = Family(
    model_type="openelm",
    architectures=("OpenELMForCausalLM",),
    names=OPENELM_NAMES,
    build=_build_openelm,
    gguf_arch="openelm",
    gguf_keys={
        "block_count": "num_transformer_layers",
        "embedding_length": "model_dim",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_query_heads",
        "attention.head_count_kv": "num_kv_heads",
        "attention.key_length": "head_dim",
        "context_length": "max_context_length",
        "rope.freq_base": "rope_freq_constant",
        "vocab_size": "vocab_size",
    },
    gguf_rule=_openelm_gguf,
    gguf_config=_config_of_openelm_gguf,
)

# ---- DeciLM, Nemotron ----------------------------------------------------------------------------

DECI_NAMES = HUB_NAMES | {
    "linear_attn": Names(
        "model.layers.{i}.self_attn.linear_attn.weight", "blk.{i}.attn_output.weight"
    ),
    "linear_mlp": Names("model.layers.{i}.mlp.linear_mlp.weight"),
}


def deci_width(hidden_size: int, ffn_mult: float) -> int:
    """I = int(2·ffn_mult·H/3), rounded up to a multiple of 256."""
    width = int(2 * ffn_mult * hidden_size / 3)
    return -(-width // 256) * 256


def _refuse(block: Config, **fine: Any) -> None:
    """Switches of the newer block format that would change the tensors."""
    for key, value in fine.items():
        if block.raw(key, default=value) != value:
            raise block.fault(key, block.raw(key), f"{value!r}: other blocks are not described")


def _deci_attention(block: Config, heads: int, head_dim: int) -> AttentionSpec | str | None:
    """The attention of one block; "linear" for one matrix, None for none."""
    if block.flag("no_op", default=False):
        return None
    if block.flag("replace_with_linear", default=False):
        return "linear"
    _refuse(block, mamba=None, llama4=None)
    group = block.integer("n_heads_in_group")
    if heads % group:
        raise block.fault("n_heads_in_group", group, f"a divisor of the {heads} heads")
    window = block.integer("window_length", default=None, high=1 << 40)
    return AttentionSpec(heads, heads // group, head_dim, head_dim, window=window)


def _deci_mlp(
    block: Config, hidden: int, act_default: str, bias: bool
) -> GatedMLPSpec | str | None:
    """The MLP of one block; an explicit intermediate_size wins over ffn_mult."""
    if block.flag("no_op", default=False):
        return None
    if block.flag("replace_with_linear", default=False):
        return "linear"
    _refuse(block, moe=None, gated=True)
    width = block.integer("intermediate_size", default=None)
    if width is None:
        mult = block.number("ffn_mult", default=None, low=1e-6)
        if mult is None:
            raise block.missing("ffn_mult", "intermediate_size")
        if mult * hidden > MAX_DIM:
            raise block.fault("ffn_mult", mult, f"a width of at most {MAX_DIM}")
        width = block.check_int("ffn_mult", deci_width(hidden, mult))
    return GatedMLPSpec(width, activation(block, "hidden_act", default=act_default), bias)


def _deci_blocks(
    cfg: Config, hidden: int
) -> list[tuple[AttentionSpec | str | None, GatedMLPSpec | str | None]]:
    """(attention, MLP) of each layer, from either form of the config."""
    n = num_layers(cfg)
    heads = cfg.integer("num_attention_heads")
    head_dim = cfg.integer("head_dim", default=None)
    if head_dim is None:
        head_dim = max(hidden // heads, 1)
    act = cfg.text("hidden_act", default="silu")
    activation(cfg)
    bias = cfg.flag("mlp_bias", default=False)
    if not cfg.has("block_configs"):  # DeciLM-6B and 7B: only the KV heads vary
        if not cfg.has("num_key_value_heads_per_layer"):
            raise cfg.missing("block_configs", "num_key_value_heads_per_layer")
        kv = cfg.integers("num_key_value_heads_per_layer", length=n, low=1)
        mlp = GatedMLPSpec(cfg.integer("intermediate_size"), activation(cfg), bias)
        for i, k in enumerate(kv):
            if heads % k:
                raise cfg.fault(
                    f"num_key_value_heads_per_layer[{i}]", k, f"a divisor of the {heads} heads"
                )
        return [(AttentionSpec(heads, k, head_dim, head_dim), mlp) for k in kv]
    blocks = cfg.raw("block_configs")
    if not isinstance(blocks, list) or len(blocks) != n:
        raise cfg.fault("block_configs", blocks, f"a list of {n} blocks")
    out = []
    for i, block in enumerate(blocks):
        if not isinstance(block, Mapping):
            raise cfg.fault(f"block_configs[{i}]", block, "an object with attention and ffn")
        parts = Config(block, f"{cfg.where}: block_configs[{i}]")
        attention = _deci_attention(parts.sub("attention"), heads, head_dim)
        out.append((attention, _deci_mlp(parts.sub("ffn"), hidden, act, bias)))
    return out


def _build_deci(cfg: Config, name: str) -> ModelSpec:
    hidden = cfg.integer("hidden_size")
    vocab = cfg.integer("vocab_size")
    tied = cfg.flag("tie_word_embeddings", default=False)
    bias = cfg.flag("attention_bias", default=False)
    frame = Frame("nemotron-nas", "DeciLMForCausalLM", DECI_NAMES, hidden, vocab, tied)
    rows = frame.rows()
    layers = []
    for i, (attn, mlp) in enumerate(_deci_blocks(cfg, hidden)):
        if attn is not None:
            rows.norm("input_layernorm", hidden, i)
        if isinstance(attn, AttentionSpec):
            rows.attention(i, hidden, attn, qkv_bias=bias, o_bias=bias)
        elif attn is not None:
            rows.linear("linear_attn", hidden, hidden, "attention", i)
        if mlp is not None:
            rows.norm("post_attention_layernorm", hidden, i)
        if isinstance(mlp, GatedMLPSpec):
            rows.gated_mlp(i, hidden, mlp)
        elif mlp is not None:
            rows.linear("linear_mlp", hidden, hidden, "mlp", i)
        layers.append(
            LayerSpec(
                i,
                attn if isinstance(attn, AttentionSpec) else None,
                mlp if isinstance(mlp, GatedMLPSpec) else None,
            )
        )
    return frame.finish(cfg, name, rows, layers)


def _deci_gguf(spec: ModelSpec, row: TensorSpec) -> list[GGUFTensor] | None:
    if row.role == "linear_mlp":
        raise UnknownArchitectureError(
            f"layer {row.layer} has one matrix for an MLP, which llama.cpp's deci cannot hold",
            where=spec.name,
        )
    return None


def _config_of_deci_gguf(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], config: dict[str, Any]
) -> dict[str, Any]:
    """Per-layer head counts and widths back into block_configs.

    llama.cpp marks a layer without attention by 0 heads, one with a single matrix in its place
    by 0 KV heads, one without an MLP by a width of 0.
    """
    config = config_of_llama_gguf(metadata, shapes, config)
    layers = config.get("num_hidden_layers")
    heads, kv, widths = (
        _per_layer(config.pop(key, None), layers)
        for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size")
    )
    if not all(isinstance(x, list) and len(x) == layers for x in (heads, kv, widths)):
        raise ConfigError(
            "head counts or widths are missing, or not one per layer",
            where="GGUF metadata, deci.attention.head_count and its like",
            expected=f"one number, or {layers} of them",
        )
    numbers = [x for x in (*heads, *kv, *widths) if isinstance(x, int)]
    if len(numbers) != 3 * len(heads):
        raise ConfigError(
            "head counts or widths are not whole numbers",
            where="GGUF metadata, deci.attention.head_count and its like",
        )
    config["num_attention_heads"] = max(heads)
    config["block_configs"] = [
        {
            "attention": {
                "no_op": h == 0,
                "replace_with_linear": h > 0 and k == 0,
                "n_heads_in_group": h // k if k > 0 else None,
            },
            "ffn": {"no_op": width == 0, "intermediate_size": width or None},
        }
        for h, k, width in zip(heads, kv, widths, strict=True)
    ]
    return config


DECI = Family(
    model_type="nemotron-nas",
    architectures=("DeciLMForCausalLM",),
    names=DECI_NAMES,
    build=_build_deci,
    gguf_arch="deci",
    gguf_keys=GGUF_KEYS,
    gguf_rule=_deci_gguf,
    gguf_extra=rope_freqs,
    gguf_config=_config_of_deci_gguf,
)

FAMILIES = (OPENELM, DECI)
