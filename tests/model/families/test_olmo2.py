"""OLMo 2 against transformers' class."""

from __future__ import annotations

import pytest

from gateup.model.families import build_spec, gguf_tensors

OLMO2 = {
    "architectures": ["Olmo2ForCausalLM"],
    "model_type": "olmo2",
    "hidden_size": 24,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 97,
}
OLMO2_7B = {
    **OLMO2,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 100352,
}


@pytest.mark.parametrize(
    "config",
    [
        OLMO2,
        {**OLMO2, "attention_bias": True},
        {**OLMO2, "tie_word_embeddings": True},
        {**OLMO2, "num_key_value_heads": None},
        OLMO2_7B,
    ],
)
def test_tensors_are_those_of_the_class(class_tensors, config):
    spec = build_spec(config, where="config.json", name="olmo2")
    assert {n: r.shape for n, r in spec.tensors()} == class_tensors(config)


def test_total_of_the_7b_model():
    assert build_spec(OLMO2_7B, where="config.json", name="olmo2").params == 7_298_617_344


def test_gguf_names_of_the_norms_behind():
    spec = build_spec(OLMO2, where="config.json", name="olmo2")
    tensors = {t.name: t.ne for t in gguf_tensors(spec)}
    assert tensors["blk.0.post_attention_norm.weight"] == (24,)
    assert tensors["blk.0.post_ffw_norm.weight"] == (24,)
    assert tensors["blk.0.attn_q_norm.weight"] == (24,)
    assert tensors["blk.0.attn_k_norm.weight"] == (8,)
    assert not {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"} & set(tensors)
