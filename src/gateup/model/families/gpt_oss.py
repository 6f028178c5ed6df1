"""gpt-oss: stacked interleaved experts with biases, attention sinks, every other layer windowed.

The Hub stores the experts as MXFP4: `<name>_blocks` and `<name>_scales` instead of `<name>`.
The canonical tensor is the logical one (`experts.gate_up_proj` [E, H, 2I]); `companion` maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gateup.errors import ConfigError
from gateup.model.config import MAX_DIM, Config
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
from gateup.model.families.llama import GGUF_KEYS
from gateup.model.families.moe import add_stacked, moe_names, split_stacked
from gateup.model.families.windows import by_layer, window_size
from gateup.model.layout import GateUpLayout
from gateup.model.spec import GatedMLPSpec, LayerSpec, ModelSpec, MoESpec

# Even columns gate, odd columns up; bias and scales lie the same way. The numbers are the
# activation's: gate cut at 7, up at ±7, gate·sigmoid(1.702·gate)·(up + 1).
LAYOUT = GateUpLayout(
    "interleaved",
    "gate_up",
    "in_out",
    stacked=True,
    bias=True,
    clamp=7.0,
    alpha=1.702,
    offset=1.0,
)
# The packed form: rows along the input, so output rows come first ([E, 2I, H/32, 16] bytes).
PACKED_LAYOUT = replace(LAYOUT, orientation="out_in", scales="rows")

_MLP = "model.layers.{i}.mlp."

NAMES = moe_names(
    {
        "router": Names(_MLP + "router.weight", "blk.{i}.ffn_gate_inp.weight"),
        # GGUF: gate and up apart, by rule
        "experts.gate_up_proj": Names(_MLP + "experts.gate_up_proj"),
        "experts.gate_up_proj.bias": Names(_MLP + "experts.gate_up_proj_bias"),
        "experts.down_proj": Names(_MLP + "experts.down_proj", "blk.{i}.ffn_down_exps.weight"),
        "experts.down_proj.bias": Names(
            _MLP + "experts.down_proj_bias", "blk.{i}.ffn_down_exps.bias"
        ),
        "sinks": Names("model.layers.{i}.self_attn.sinks", "blk.{i}.attn_sinks.weight"),
    },
)
NAMES["post_attention_layernorm"] = NAMES["post_attention_layernorm"]._replace(
    gguf="blk.{i}.post_attention_norm.weight"
)

MXFP4_BLOCK = 32  # elements that share one scale byte
# suffix in the Hub's file -> bytes that stand for one block of 32 elements
COMPANIONS: Mapping[str, int] = {"_blocks": MXFP4_BLOCK // 2, "_scales": 1}


class Companion(NamedTuple):
    """A stored piece of a logical tensor: its canonical name and bytes per 32 elements."""

    canonical: str
    block_bytes: int


def companion(name: str) -> Companion | None:
    """`…experts.down_proj_blocks` -> (`…experts.down_proj`, 16); None: not such a piece."""
    for suffix, nbytes in COMPANIONS.items():
        stem = name.removesuffix(suffix)
        if stem != name and stem.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            return Companion(stem, nbytes)
    return None


def companion_shape(suffix: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Stored shape of a piece of a logical [E, in, out]: rows lie along the input there.

    `_blocks` [E, out, in/32, 16], `_scales` [E, out, in/32]. Raises ConfigError where the
    input width is not a multiple of 32.
    """
    experts, inp, out = shape
    if inp % MXFP4_BLOCK:
        raise ConfigError(
            f"input width {inp} is not a multiple of {MXFP4_BLOCK}",
            expected="whole MXFP4 blocks along the input",
        )
    stored = (experts, out, inp // MXFP4_BLOCK)
    return (*stored, COMPANIONS[suffix]) if suffix == "_blocks" else stored


def _layout(cfg: Config) -> GateUpLayout:
    """The layout with the activation's numbers where the config gives them."""
    return replace(
        LAYOUT,
        clamp=cfg.number("swiglu_limit", default=LAYOUT.clamp),
        alpha=cfg.number("swiglu_alpha", default=LAYOUT.alpha),
    )


def build(cfg: Config, name: str) -> ModelSpec:
    """Expert width is `intermediate_size`; layers alternate windowed and full, windowed first."""
    hidden = cfg.integer("hidden_size")
    vocab = cfg.integer("vocab_size")
    n = num_layers(cfg)
    activation(cfg)  # refuse unknown names; the clamped form below is what the model computes
    experts = num_experts(cfg, "num_local_experts", "num_experts")
    width = cfg.integer("intermediate_size", high=MAX_DIM // 2)
    moe = MoESpec(
        experts,
        top_k(cfg, experts, "num_experts_per_tok", "experts_per_token"),
        GatedMLPSpec(width, "gpt_oss", bias=True, layout=_layout(cfg)),
        router_bias=True,
    )
    windows = by_layer(cfg, n, window_size(cfg, default=128), lambda i: i % 2 == 0)
    bias = cfg.flag("attention_bias", default=True)
    tied = cfg.flag("tie_word_embeddings", default=False)
    frame = Frame("gpt_oss", "GptOssForCausalLM", NAMES, hidden, vocab, tied)
    rows = frame.rows()
    layers = []
    for i in range(n):
        attn = gqa(cfg, hidden, window=windows[i])
        rows.norm("input_layernorm", hidden, i)
        rows.attention(i, hidden, attn, qkv_bias=bias, o_bias=bias)
        rows.add("sinks", (attn.num_heads,), "attention", i, matmul=False)
        rows.norm("post_attention_layernorm", hidden, i)
        rows.linear("router", experts, hidden, "mlp", i, bias=True)
        add_stacked(rows, i, hidden, moe)
        layers.append(LayerSpec(i, attn, moe))
    return frame.finish(cfg, name, rows, layers)


def config_of_gguf(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], config: dict[str, Any]
) -> dict[str, Any]:
    """Attention biases show in the tensors only; no window in the metadata means none."""
    del metadata
    config["attention_bias"] = "blk.0.attn_output.bias" in shapes
    config.setdefault("sliding_window", None)
    return config


GPT_OSS = Family(
    model_type="gpt_oss",
    architectures=("GptOssForCausalLM",),
    names=NAMES,
    build=build,
    gguf_arch="gpt-oss",
    gguf_keys={
        **{k: v for k, v in GGUF_KEYS.items() if k != "feed_forward_length"},
        "expert_count": "num_local_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "intermediate_size",
    },
    gguf_rule=split_stacked,
    gguf_config=config_of_gguf,
)

FAMILIES = (GPT_OSS,)
