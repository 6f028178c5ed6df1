"""Llama and Granite against transformers' classes, published totals and llama.cpp's converter."""

from __future__ import annotations

from math import prod

import pytest

from gateup.errors import ConfigError
from gateup.model.families import build_spec, gguf_tensors
from gateup.model.families.llama import llama_width

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 24,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
}
LLAMA_31_ROPE = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def spec_of(**changes):
    return build_spec({**TINY, **changes}, where="config.json", name="tiny")


def shapes(spec):
    return {name: row.shape for name, row in spec.tensors()}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_bias": True},
        {"mlp_bias": True, "attention_bias": True},
        {"tie_word_embeddings": True},
        {"head_dim": 10},
        {"num_key_value_heads": None},
        {"architectures": ["GraniteForCausalLM"], "model_type": "granite"},
        {
            "architectures": ["GraniteForCausalLM"],
            "model_type": "granite",
            "mlp_bias": True,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    ids=lambda c: ",".join(c) or "plain",
)
def test_tensors_are_those_of_the_class(class_tensors, changes):
    assert shapes(spec_of(**changes)) == class_tensors({**TINY, **changes})


@pytest.mark.parametrize(
    "hub_name",
    [
        "meta-llama/Llama-2-7b-hf",
        "meta-llama/Llama-2-70b-hf",
        "meta-llama/Llama-3.1-8B",
        "meta-llama/Llama-3.2-1B",
        "HuggingFaceTB/SmolLM2-135M",
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    ],
)
def test_totals_of_known_models(known_models, class_tensors, hub_name):
    facts = known_models[hub_name]
    config = {k: v for k, v in facts.items() if v is not None and k in {**TINY, "head_dim": 0}}
    config |= {
        "architectures": [facts["architecture"]],
        "tie_word_embeddings": facts["tie_word_embeddings"],
    }
    spec = build_spec(config, where="config.json", name=hub_name)
    assert spec.params == facts["total_params_computed"]
    assert shapes(spec) == class_tensors(config)


def test_llama_2_70b_has_56_billion_parameters_in_its_mlps(known_models):
    facts = known_models["meta-llama/Llama-2-70b-hf"]
    spec = build_spec(
        {**facts, "architectures": [facts["architecture"]]}, where="config.json", name="70b"
    )
    assert spec.part_params("mlp") == 56_371_445_760


@pytest.mark.parametrize(
    ("hidden", "options", "width"),
    [
        (4096, {}, 11008),
        (5120, {}, 13824),
        (6656, {}, 17920),
        (8192, {}, 22016),
        (8192, {"ffn_dim_multiplier": 1.3, "multiple_of": 4096}, 28672),
        (4096, {"ffn_dim_multiplier": 1.3, "multiple_of": 1024}, 14336),
        (2048, {"ffn_dim_multiplier": 1.5, "multiple_of": 256}, 8192),
    ],
)
def test_width_rule(hidden, options, width):
    assert llama_width(hidden, **options) == width


def test_llama_ignores_a_sliding_window_and_layer_types_as_its_class_does():
    spec = spec_of(sliding_window=16, layer_types=["sliding_attention"] * 3)
    assert all(x.attention.window is None for x in spec.layers)


def test_old_class_name_is_llama():
    assert spec_of(architectures=["LLaMAForCausalLM"]).family == "llama"


def test_gguf_of_the_demo_model_has_the_tensors_we_say(smollm2_gguf, known_models):
    import gguf

    facts = known_models["HuggingFaceTB/SmolLM2-135M"]
    spec = build_spec(
        {**facts, "architectures": [facts["architecture"]]}, where="config.json", name="smollm2"
    )
    reader = gguf.GGUFReader(smollm2_gguf)
    there = {t.name: tuple(int(d) for d in t.shape) for t in reader.tensors}
    assert {t.name: t.ne for t in gguf_tensors(spec)} == there
    assert len(there) == 272
    assert sum(prod(ne) for ne in there.values()) == spec.params == 134_515_008


def test_gguf_names_and_counts():
    spec = spec_of(attention_bias=True, rope_scaling=LLAMA_31_ROPE)
    tensors = {t.name: t for t in gguf_tensors(spec)}
    assert tensors["blk.0.attn_k.weight"].ne == (24, 8)
    assert tensors["blk.2.attn_q.bias"].ne == (24,)
    assert tensors["blk.1.ffn_down.weight"].ne == (52, 24)
    assert tensors["rope_freqs.weight"].ne == (2,)
    assert tensors["rope_freqs.weight"].params == 0
    assert sum(t.params for t in tensors.values()) == spec.params


def test_granite_gets_no_rope_table_and_llama_only_for_its_own_scaling():
    assert "rope_freqs.weight" not in {
        t.name
        for t in gguf_tensors(
            spec_of(architectures=["GraniteForCausalLM"], rope_scaling=LLAMA_31_ROPE)
        )
    }
    linear = spec_of(rope_scaling={"type": "linear", "factor": 2.0})
    assert "rope_freqs.weight" not in {t.name for t in gguf_tensors(linear)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": None}, ["hidden_size is missing", "config.json"]),
        ({"hidden_size": "24"}, ["hidden_size is '24'", "config.json, field hidden_size"]),
        ({"intermediate_size": -1}, ["intermediate_size is -1", "field intermediate_size"]),
        ({"vocab_size": float("nan")}, ["vocab_size is nan", "field vocab_size"]),
        ({"num_hidden_layers": 1 << 40}, ["num_hidden_layers", "from 1 to 4096"]),
        ({"num_key_value_heads": 4}, ["num_attention_heads 6", "num_key_value_heads 4"]),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, ["hidden_size 24", "heads 5"]),
        ({"hidden_act": "swoosh"}, ["hidden_act is 'swoosh'", "one of silu"]),
        ({"attention_bias": "yes"}, ["attention_bias is 'yes'", "true or false"]),
        ({"intermediate_size": 10**5000}, ["intermediate_size", "more than 60 digits"]),
    ],
)
def test_bad_fields_are_named(changes, words):
    with pytest.raises(ConfigError) as caught:
        spec_of(**changes)
    for word in words:
        assert word in str(caught.value)
