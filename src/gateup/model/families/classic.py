"""The classic two-matrix FFN, act(x W1 + b1) W2 + b2, to compare with: GPT-2 and BERT.

In the roles `up_proj` is W1 and `down_proj` is W2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateup.errors import ConfigError
from gateup.model.config import Config
from gateup.model.families.base import (
    Family,
    Frame,
    GGUFTensor,
    Names,
    NameTable,
    Rows,
    activation,
    num_layers,
    with_bias,
)
from gateup.model.spec import AttentionSpec, ClassicFFNSpec, LayerSpec, ModelSpec, TensorSpec


def _heads(cfg: Config, hidden: int, heads: int) -> AttentionSpec:
    if hidden % heads:
        raise ConfigError(
            f"the hidden size {hidden} is not a multiple of the {heads} attention heads",
            where=cfg.where,
            expected="a multiple",
        )
    return AttentionSpec(heads, heads, hidden // heads, hidden // heads)


# ---- GPT-2 ---------------------------------------------------------------------------------------

GPT2_NAMES = with_bias(
    {
        "embed_tokens": Names("transformer.wte.weight", "token_embd.weight"),
        "position_embeddings": Names("transformer.wpe.weight", "position_embd.weight"),
        "input_layernorm": Names("transformer.h.{i}.ln_1.weight", "blk.{i}.attn_norm.weight"),
        "qkv_proj": Names("transformer.h.{i}.attn.c_attn.weight", "blk.{i}.attn_qkv.weight"),
        "o_proj": Names("transformer.h.{i}.attn.c_proj.weight", "blk.{i}.attn_output.weight"),
        "post_attention_layernorm": Names(
            "transformer.h.{i}.ln_2.weight", "blk.{i}.ffn_norm.weight"
        ),
        "up_proj": Names("transformer.h.{i}.mlp.c_fc.weight", "blk.{i}.ffn_up.weight"),
        "down_proj": Names("transformer.h.{i}.mlp.c_proj.weight", "blk.{i}.ffn_down.weight"),
        "norm": Names("transformer.ln_f.weight", "output_norm.weight"),
        "lm_head": Names("lm_head.weight", "output.weight"),
    }
)

# Stored [in, out] (Conv1D); the GGUF holds them transposed, as linear layers.
CONV1D_ROLES = frozenset({"qkv_proj", "o_proj", "up_proj", "down_proj"})


def _conv1d(rows: Rows, role: str, inp: int, out: int, layer: int) -> None:
    part = "mlp" if role in ("up_proj", "down_proj") else "attention"
    rows.add(role, (inp, out), part, layer)  # type: ignore[arg-type]
    rows.add(role + ".bias", (out,), part, layer, matmul=False)  # type: ignore[arg-type]


def _build_gpt2(cfg: Config, name: str) -> ModelSpec:
    hidden = cfg.integer("n_embd", "hidden_size")
    vocab = cfg.integer("vocab_size")
    positions = cfg.integer("n_positions", "n_ctx", "max_position_embeddings")
    attn = _heads(cfg, hidden, cfg.integer("n_head", "num_attention_heads"))
    width = cfg.integer("n_inner", default=4 * hidden)
    if cfg.flag("add_cross_attention", default=False):
        raise cfg.fault("add_cross_attention", True, "false: a decoder on its own")
    ffn = ClassicFFNSpec(width, activation(cfg, "activation_function", default="gelu_new"))
    tied = cfg.flag("tie_word_embeddings", default=True)
    frame = Frame("gpt2", "GPT2LMHeadModel", GPT2_NAMES, hidden, vocab, tied)
    rows = frame.rows()
    rows.add("position_embeddings", (positions, hidden), "embedding", matmul=False)
    layers = []
    for i in range(num_layers(cfg, "n_layer", "num_hidden_layers")):
        rows.norm("input_layernorm", hidden, i, bias=True)
        _conv1d(rows, "qkv_proj", hidden, 3 * hidden, i)
        _conv1d(rows, "o_proj", hidden, hidden, i)
        rows.norm("post_attention_layernorm", hidden, i, bias=True)
        _conv1d(rows, "up_proj", hidden, width, i)
        _conv1d(rows, "down_proj", width, hidden, i)
        layers.append(LayerSpec(i, attn, ffn))
    rows.norm("norm", hidden, bias=True)
    if not tied:
        rows.linear("lm_head", vocab, hidden, "head", None)
    return frame.spec(cfg, name, rows, layers, max_positions=positions)


def _gpt2_gguf(spec: ModelSpec, row: TensorSpec) -> list[GGUFTensor] | None:
    """[in, out] in the file becomes [out, in], whose ne is (in, out) again."""
    template = GPT2_NAMES[row.role].gguf
    if row.role not in CONV1D_ROLES or template is None:
        return None
    return [GGUFTensor(template.replace("{i}", str(row.layer)), row.shape, (row,), row.params)]


def _config_of_gpt2_gguf(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], config: dict[str, Any]
) -> dict[str, Any]:
    """The width as the tensors have it: the converter writes 4H as metadata whatever it is."""
    del metadata
    ne = shapes.get("blk.0.ffn_up.weight", ())
    if len(ne) == 2:
        config["n_inner"] = ne[1]
    return config


GPT2 = Family(
    model_type="gpt2",
    architectures=("GPT2LMHeadModel",),
    names=GPT2_NAMES,
    build=_build_gpt2,
    gguf_arch="gpt2",
    gguf_keys={
        "block_count": "n_layer",
        "embedding_length": "n_embd",
        "feed_forward_length": "n_inner",
        "attention.head_count": "n_head",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
        "context_length": "n_positions",
        "vocab_size": "vocab_size",
    },
    gguf_rule=_gpt2_gguf,
    gguf_config=_config_of_gpt2_gguf,
)

# ---- BERT ----------------------------------------------------------------------------------------

_BERT_LAYER = "encoder.layer.{i}."

# Files of BertModel alone (sentence encoders) have these names; those of BertForMaskedLM have
# "bert." before all but the head's.
BERT_BODY_NAMES = with_bias(
    {
        "embed_tokens": Names("embeddings.word_embeddings.weight", "token_embd.weight"),
        "position_embeddings": Names(
            "embeddings.position_embeddings.weight", "position_embd.weight"
        ),
        "token_types": Names("embeddings.token_type_embeddings.weight", "token_types.weight"),
        "embed_norm": Names("embeddings.LayerNorm.weight", "token_embd_norm.weight"),
        "q_proj": Names(_BERT_LAYER + "attention.self.query.weight", "blk.{i}.attn_q.weight"),
        "k_proj": Names(_BERT_LAYER + "attention.self.key.weight", "blk.{i}.attn_k.weight"),
        "v_proj": Names(_BERT_LAYER + "attention.self.value.weight", "blk.{i}.attn_v.weight"),
        "o_proj": Names(
            _BERT_LAYER + "attention.output.dense.weight", "blk.{i}.attn_output.weight"
        ),
        "post_attention_layernorm": Names(
            _BERT_LAYER + "attention.output.LayerNorm.weight", "blk.{i}.attn_output_norm.weight"
        ),
        "up_proj": Names(_BERT_LAYER + "intermediate.dense.weight", "blk.{i}.ffn_up.weight"),
        "down_proj": Names(_BERT_LAYER + "output.dense.weight", "blk.{i}.ffn_down.weight"),
        "post_feedforward_layernorm": Names(
            _BERT_LAYER + "output.LayerNorm.weight", "blk.{i}.layer_output_norm.weight"
        ),
        "pooler": Names("pooler.dense.weight"),
    }
)

BERT_NAMES: NameTable = {
    role: names._replace(hf="bert." + names.hf) for role, names in BERT_BODY_NAMES.items()
} | with_bias(
    {
        "head_transform": Names("cls.predictions.transform.dense.weight"),
        "head_norm": Names("cls.predictions.transform.LayerNorm.weight"),
        "lm_head": Names("cls.predictions.decoder.weight"),
        "head_output.bias": Names("cls.predictions.bias"),
    }
)

# Parts of the model that a GGUF leaves out: llama.cpp uses BERT for embeddings only.
_NOT_IN_GGUF = ("pooler", "head_transform", "head_norm", "lm_head", "head_output")


def _build_bert(cfg: Config, name: str) -> ModelSpec:
    masked_lm = (cfg.raw("architectures") or ["BertModel"])[0] == "BertForMaskedLM"
    hidden = cfg.integer("hidden_size")
    vocab = cfg.integer("vocab_size")
    positions = cfg.integer("max_position_embeddings")
    attn = _heads(cfg, hidden, cfg.integer("num_attention_heads"))
    width = cfg.integer("intermediate_size")
    if cfg.flag("add_cross_attention", default=False):
        raise cfg.fault("add_cross_attention", True, "false: an encoder on its own")
    ffn = ClassicFFNSpec(width, activation(cfg, default="gelu"))
    tied = cfg.flag("tie_word_embeddings", default=True)
    frame = Frame(
        "bert",
        "BertForMaskedLM" if masked_lm else "BertModel",
        BERT_NAMES if masked_lm else BERT_BODY_NAMES,
        hidden,
        vocab,
        tied if masked_lm else True,
    )
    rows = frame.rows()
    rows.add("position_embeddings", (positions, hidden), "embedding", matmul=False)
    types = cfg.integer("type_vocab_size", default=2)
    rows.add("token_types", (types, hidden), "embedding", matmul=False)
    rows.norm("embed_norm", hidden, bias=True)
    layers = []
    for i in range(num_layers(cfg)):
        rows.attention(i, hidden, attn, qkv_bias=True, o_bias=True)
        rows.norm("post_attention_layernorm", hidden, i, bias=True)
        rows.linear("up_proj", width, hidden, "mlp", i, bias=True)
        rows.linear("down_proj", hidden, width, "mlp", i, bias=True)
        rows.norm("post_feedforward_layernorm", hidden, i, bias=True)
        layers.append(LayerSpec(i, attn, ffn))
    if masked_lm:
        rows.linear("head_transform", hidden, hidden, "head", None, bias=True)
        rows.norm("head_norm", hidden, bias=True)
        if not tied:
            rows.linear("lm_head", vocab, hidden, "head", None)
        rows.add("head_output.bias", (vocab,), "head", matmul=False)
    elif cfg.flag("add_pooling_layer", default=True):
        # One token of a sequence passes through it, so it adds nothing per token.
        rows.add("pooler", (hidden, hidden), "head", matmul=False)
        rows.add("pooler.bias", (hidden,), "head", matmul=False)
    return frame.spec(cfg, name, rows, layers, max_positions=positions)


def _bert_gguf(spec: ModelSpec, row: TensorSpec) -> list[GGUFTensor] | None:
    del spec
    return [] if row.role.removesuffix(".bias") in _NOT_IN_GGUF else None


def _config_of_bert_gguf(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], config: dict[str, Any]
) -> dict[str, Any]:
    """A GGUF holds BertModel without its pooler; the number of token types is its table's."""
    del metadata
    config["architectures"] = ["BertModel"]
    config["add_pooling_layer"] = False
    if "token_types.weight" in shapes:
        config["type_vocab_size"] = shapes["token_types.weight"][-1]
    return config


BERT = Family(
    model_type="bert",
    architectures=("BertForMaskedLM", "BertModel"),
    names=BERT_NAMES,
    build=_build_bert,
    gguf_arch="bert",
    gguf_keys={
        "block_count": "num_hidden_layers",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.layer_norm_epsilon": "layer_norm_eps",
        "context_length": "max_position_embeddings",
        "vocab_size": "vocab_size",
    },
    gguf_rule=_bert_gguf,
    gguf_config=_config_of_bert_gguf,
)

FAMILIES = (GPT2, BERT)
