"""Llama 4, text part: stacked input-major experts, one shared expert, chunked attention.

`Llama4ForCausalLM` is the text model alone; `Llama4ForConditionalGeneration` holds it under
`language_model.` beside a vision tower, which is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gateup.model.config import MAX_DIM, Config
from gateup.model.families.base import (
    Family,
    Frame,
    GGUFTensor,
    Names,
    activation,
    dtype,
    gqa,
    num_experts,
    num_layers,
    top_k,
    with_bias,
)
from gateup.model.families.llama import GGUF_KEYS, config_of_llama_gguf, rope_freqs
from gateup.model.families.llama import NAMES as LLAMA_NAMES
from gateup.model.families.moe import add_stacked, shared_names, sparse_layers, split_stacked
from gateup.model.families.windows import MAX_WINDOW, Windows, layer_types
from gateup.model.layout import GateUpLayout
from gateup.model.spec import GatedMLPSpec, LayerSpec, ModelSpec, MoESpec

LAYOUT = GateUpLayout("concat", "gate_up", "in_out", stacked=True)

_FF = "model.layers.{i}.feed_forward."


def _names(prefix: str) -> dict[str, Names]:
    """Llama's table with this family's block name. Meta's own files fuse and shard otherwise."""
    table = {
        role: Names(n.hf.replace(".mlp.", ".feed_forward."), n.gguf)
        for role, n in LLAMA_NAMES.items()
    }
    table.update(
        with_bias(shared_names("feed_forward.shared_expert"))
        | {
            "router": Names(_FF + "router.weight", "blk.{i}.ffn_gate_inp.weight"),
            "experts.gate_up_proj": Names(_FF + "experts.gate_up_proj"),
            "experts.down_proj": Names(_FF + "experts.down_proj", "blk.{i}.ffn_down_exps.weight"),
        }
    )
    return {
        role: n._replace(hf=prefix + n.hf, meta=None, megatron=None) for role, n in table.items()
    }


TEXT_NAMES = _names("")
MULTIMODAL_NAMES = _names("language_model.")

VISION_NOTE = (
    "the vision tower and its projector (vision_model.*, multi_modal_projector.*) are not counted"
)


def _moe_layers(cfg: Config, layers: int) -> set[int]:
    """`moe_layers` where listed, else every `interleave_moe_layer_step`-th."""
    if cfg.has("moe_layers"):
        return set(cfg.integers("moe_layers"))
    step = cfg.integer("interleave_moe_layer_step", default=1)
    return set(range(step - 1, layers, step))


def _windows(cfg: Config, layers: int) -> Windows:
    """Chunks on the layers with rope; every `no_rope_layer_interval`-th sees everything."""
    chunk = cfg.integer("attention_chunk_size", default=None, high=MAX_WINDOW)
    if "attention_chunk_size" not in cfg.values:
        chunk = 8192  # the class's default, also llama.cpp's constant
    types = layer_types(cfg, layers)
    if types is not None:
        return [chunk if kind == "chunked_attention" else None for kind in types]
    if cfg.raw("no_rope_layers"):  # an empty list means "not set" in the published configs
        rope = [bool(x) for x in cfg.integers("no_rope_layers", length=layers, high=1)]
    else:
        interval = cfg.integer("no_rope_layer_interval", default=4)
        rope = [(i + 1) % interval != 0 for i in range(layers)]
    return [chunk if uses_rope else None for uses_rope in rope]


def _specs(cfg: Config, layers: int) -> tuple[MoESpec | None, GatedMLPSpec | None, set[int]]:
    """The sparse layers' spec, the dense layers' spec, which layers are sparse."""
    act = activation(cfg)
    sparse = _moe_layers(cfg, layers) & set(range(layers))
    moe = dense = None
    if sparse:
        experts = num_experts(cfg, "num_local_experts", "num_experts")
        width = cfg.integer("intermediate_size", high=MAX_DIM // 2)
        moe = MoESpec(
            experts,
            top_k(cfg, experts),
            GatedMLPSpec(width, act, layout=LAYOUT),
            shared=GatedMLPSpec(width, act),
        )
    if len(sparse) < layers:
        dense = GatedMLPSpec(cfg.integer("intermediate_size_mlp"), act)
    return moe, dense, sparse


def _build_text(
    cfg: Config, name: str, names: Mapping[str, Names], family: str, architecture: str
) -> ModelSpec:
    hidden = cfg.integer("hidden_size")
    vocab = cfg.integer("vocab_size")
    n = num_layers(cfg)
    moe, dense, sparse = _specs(cfg, n)
    windows = _windows(cfg, n)
    bias = cfg.flag("attention_bias", default=False)
    tied = cfg.flag("tie_word_embeddings", default=False)
    frame = Frame(family, architecture, names, hidden, vocab, tied)
    rows = frame.rows()
    layers = []
    for i in range(n):
        attn = replace(gqa(cfg, hidden, window=windows[i]), chunked=windows[i] is not None)
        rows.norm("input_layernorm", hidden, i)
        rows.attention(i, hidden, attn, qkv_bias=bias, o_bias=bias)
        rows.norm("post_attention_layernorm", hidden, i)
        mlp = moe if i in sparse else dense
        if isinstance(mlp, MoESpec):
            assert mlp.shared is not None
            rows.linear("router", mlp.num_experts, hidden, "mlp", i)
            add_stacked(rows, i, hidden, mlp)
            rows.gated_mlp(i, hidden, mlp.shared, prefix="shared_expert.")
        elif mlp is not None:
            rows.gated_mlp(i, hidden, mlp)
        layers.append(LayerSpec(i, attn, mlp))
    return frame.finish(cfg, name, rows, layers)


def build_text(cfg: Config, name: str) -> ModelSpec:
    return _build_text(cfg, name, TEXT_NAMES, "llama4_text", "Llama4ForCausalLM")


def build_multimodal(cfg: Config, name: str) -> ModelSpec:
    """The text model inside; `tie_word_embeddings` and the dtype may stand on either level."""
    text = cfg.sub("text_config")
    if "tie_word_embeddings" not in text.values and cfg.has("tie_word_embeddings"):
        tie = {"tie_word_embeddings": cfg.flag("tie_word_embeddings")}
        text = Config({**text.values, **tie}, text.where)
    spec = _build_text(text, name, MULTIMODAL_NAMES, "llama4", "Llama4ForConditionalGeneration")
    return replace(spec, config=cfg.values, dtype=spec.dtype or dtype(cfg), notes=(VISION_NOTE,))


def gguf_extra(spec: ModelSpec) -> list[GGUFTensor]:
    """The rope table, whose settings a multimodal config keeps one level down."""
    text = spec.config.get("text_config")
    return rope_freqs(replace(spec, config=text) if isinstance(text, Mapping) else spec)


def config_of_gguf(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], config: dict[str, Any]
) -> dict[str, Any]:
    """A window of 0 switches the chunks off; else llama.cpp takes 8192, whatever was trained."""
    config = config_of_llama_gguf(metadata, shapes, config)
    config["attention_chunk_size"] = None if config.pop("sliding_window", None) == 0 else 8192
    layers = config.get("num_hidden_layers")
    config["moe_layers"] = sparse_layers(shapes, layers)
    return config


def _family(
    model_type: str,
    architecture: str,
    names: Mapping[str, Names],
    build: Callable[[Config, str], ModelSpec],
) -> Family:
    return Family(
        model_type=model_type,
        architectures=(architecture,),
        names=names,
        build=build,
        gguf_arch="llama4",
        gguf_keys={
            **GGUF_KEYS,
            "feed_forward_length": "intermediate_size_mlp",
            "expert_feed_forward_length": "intermediate_size",
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        },
        gguf_rule=split_stacked,
        gguf_extra=gguf_extra,
        gguf_config=config_of_gguf,
    )


LLAMA4_TEXT = _family("llama4_text", "Llama4ForCausalLM", TEXT_NAMES, build_text)
LLAMA4 = _family("llama4", "Llama4ForConditionalGeneration", MULTIMODAL_NAMES, build_multimodal)

FAMILIES = (LLAMA4_TEXT, LLAMA4)
