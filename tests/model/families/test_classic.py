"""GPT-2 and BERT against transformers' classes and llama.cpp's names."""

from __future__ import annotations

from math import prod

import pytest

from gateup.errors import ConfigError
from gateup.model.families import build_spec, gguf_tensors
from gateup.model.families.names import NameIndex
from gateup.model.spec import ClassicFFNSpec

GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 24,
    "n_head": 4,
    "n_layer": 3,
    "n_positions": 31,
    "vocab_size": 97,
    "activation_function": "gelu_new",
}
GPT2_SMALL = {**GPT2, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024}
GPT2_SMALL["vocab_size"] = 50257
BERT = {
    "architectures": ["BertForMaskedLM"],
    "model_type": "bert",
    "hidden_size": 24,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 31,
    "type_vocab_size": 2,
    "vocab_size": 97,
    "hidden_act": "gelu",
}
BERT_BASE = {
    **BERT,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "vocab_size": 30522,
}


def build(config, **changes):
    return build_spec({**config, **changes}, where="config.json", name="model")


def shapes(spec):
    return {n: r.shape for n, r in spec.tensors()}


@pytest.mark.parametrize(
    "config",
    [
        GPT2,
        {**GPT2, "n_inner": 50},
        {**GPT2, "tie_word_embeddings": False},
        GPT2_SMALL,
        BERT,
        {**BERT, "architectures": ["BertModel"]},
        {**BERT, "type_vocab_size": 1},
        BERT_BASE,
    ],
)
def test_tensors_are_those_of_the_class(class_tensors, config):
    assert shapes(build(config)) == class_tensors(config)


def test_an_untied_bert_head_has_its_decoder(class_tensors):
    config = {**BERT, "tie_word_embeddings": False}
    theirs = class_tensors(config)
    # Untied, the class keeps a second bias beside cls.predictions.bias that it never adds twice.
    theirs.pop("cls.predictions.decoder.bias", None)
    assert shapes(build(config)) == theirs


def test_totals():
    assert build(GPT2_SMALL).params == 124_439_808
    assert build(BERT_BASE).params == 109_514_298
    assert build(BERT_BASE, architectures=["BertModel"]).params == 109_482_240


def test_the_classic_ffn_is_8_h_squared_and_its_biases():
    spec = build(GPT2_SMALL)
    ffn = spec.layers[0].mlp
    assert ffn == ClassicFFNSpec(4 * 768, "gelu_tanh", bias=True)
    assert spec.part_params("mlp", 0) == 8 * 768**2 + 5 * 768
    assert build(BERT_BASE).layers[0].mlp.act == "gelu"


def test_gpt2_gguf_is_transposed():
    spec = build(GPT2, n_inner=50)
    tensors = {t.name: t for t in gguf_tensors(spec)}
    assert tensors["blk.0.ffn_up.weight"].ne == (24, 50)
    assert tensors["blk.0.ffn_down.weight"].ne == (50, 24)
    assert tensors["blk.0.attn_qkv.weight"].ne == (24, 72)
    assert tensors["blk.0.attn_qkv.bias"].ne == (72,)
    assert tensors["position_embd.weight"].ne == (24, 31)
    assert "output.weight" not in tensors
    assert sum(prod(t.ne) for t in tensors.values()) == spec.params


def test_bert_gguf_is_the_body_without_pooler_or_head():
    for architecture in ("BertForMaskedLM", "BertModel"):
        spec = build(BERT, architectures=[architecture])
        tensors = {t.name: t for t in gguf_tensors(spec)}
        body = sum(r.params for r in spec.rows if r.part != "head" and r.role[:9] != "head_norm")
        assert sum(t.params for t in tensors.values()) == body
        assert tensors["token_types.weight"].ne == (24, 2)
        assert tensors["blk.2.layer_output_norm.bias"].ne == (24,)


def test_names_with_and_without_the_backbone_and_from_tensorflow():
    gpt2 = NameIndex(build(GPT2), "hf")
    assert gpt2.canonical("h.1.mlp.c_fc.weight") == "transformer.h.1.mlp.c_fc.weight"
    assert gpt2.canonical("wte.weight") == "transformer.wte.weight"
    bert = NameIndex(build(BERT), "hf")
    gamma = "bert.encoder.layer.0.attention.output.LayerNorm.gamma"
    assert bert.canonical(gamma) == gamma.replace("gamma", "weight")
    body = NameIndex(build(BERT, architectures=["BertModel"]), "hf")
    assert body.canonical("bert.pooler.dense.bias") == "pooler.dense.bias"
    assert body.canonical("cls.predictions.bias") is None


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        (GPT2, {"n_embd": 25}, ["hidden size 25", "4 attention heads"]),
        (GPT2, {"activation_function": "swoosh"}, ["activation_function is 'swoosh'"]),
        (GPT2, {"add_cross_attention": True}, ["add_cross_attention is True"]),
        (GPT2, {"n_positions": None}, ["n_positions is missing"]),
        (BERT, {"type_vocab_size": 0}, ["type_vocab_size is 0"]),
        (BERT, {"hidden_act": 3}, ["hidden_act is 3", "a string"]),
    ],
)
def test_faults_are_named(config, changes, words):
    with pytest.raises(ConfigError) as caught:
        build(config, **changes)
    for word in words:
        assert word in str(caught.value)
