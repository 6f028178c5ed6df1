"""Mistral and SmolLM3 against transformers' classes."""

from __future__ import annotations

import pytest

from gateup.errors import ConfigError
from gateup.model.families import build_spec, gguf_tensors

MISTRAL = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_size": 24,
    "intermediate_size": 52,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 97,
}
SMOLLM3 = {
    **MISTRAL,
    "architectures": ["SmolLM3ForCausalLM"],
    "model_type": "smollm3",
    "pad_token_id": 0,
}


def spec_of(config, **changes):
    return build_spec({**config, **changes}, where="config.json", name="tiny")


def windows(spec):
    return [x.attention.window for x in spec.layers]


@pytest.mark.parametrize(
    "config",
    [
        MISTRAL,
        {**MISTRAL, "head_dim": 16},
        {**MISTRAL, "tie_word_embeddings": True},
        SMOLLM3,
        {**SMOLLM3, "tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    ],
)
def test_tensors_are_those_of_the_class(class_tensors, config):
    spec = spec_of(config)
    assert {n: r.shape for n, r in spec.tensors()} == class_tensors(config)


def test_total_of_mistral_7b(known_models):
    facts = known_models["mistralai/Mistral-7B-v0.1"]
    spec = spec_of({**facts, "architectures": [facts["architecture"]]})
    assert spec.params == 7_241_732_096
    assert windows(spec) == [4096] * 32


def test_total_of_mistral_nemo(class_tensors):
    """H 5120 with 32 heads of 128: head_dim is read, not computed."""
    config = {
        **MISTRAL,
        "hidden_size": 5120,
        "intermediate_size": 14336,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 131072,
    }
    spec = spec_of(config)
    assert spec.params == 12_247_782_400
    assert {n: r.shape for n, r in spec.tensors()} == class_tensors(config)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sliding_window": None}, [None] * 4),
        ({"sliding_window": 32}, [32] * 4),
        ({}, [4096] * 4),
        (
            {
                "sliding_window": 32,
                "layer_types": ["full_attention", *["sliding_attention"] * 3],
            },
            [None, 32, 32, 32],
        ),
    ],
)
def test_mistral_windows(changes, expected):
    assert windows(spec_of(MISTRAL, **changes)) == expected


def test_mistral_window_defaults_are_the_class_s():
    from transformers import MistralConfig

    assert MistralConfig.from_dict(MISTRAL).sliding_window == 4096
    assert MistralConfig.from_dict({**MISTRAL, "sliding_window": None}).sliding_window is None


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 16},
        {"sliding_window": 16, "use_sliding_window": True},
        {"sliding_window": 16, "use_sliding_window": True, "no_rope_layer_interval": 2},
        {"sliding_window": 16, "use_sliding_window": True, "no_rope_layers": [0, 0, 1, 1]},
        {"use_sliding_window": True},
    ],
)
def test_smollm3_windows_are_the_class_s(changes):
    from transformers import SmolLM3Config

    cfg = SmolLM3Config.from_dict({**SMOLLM3, **changes})
    expected = [cfg.sliding_window if t == "sliding_attention" else None for t in cfg.layer_types]
    assert windows(spec_of(SMOLLM3, **changes)) == expected


def test_smollm3_3b_total(class_tensors):
    config = {
        **SMOLLM3,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "vocab_size": 128256,
    }
    spec = spec_of(config)
    assert {n: r.shape for n, r in spec.tensors()} == class_tensors(config)
    assert spec.params == 3_075_098_624


def test_gguf_counts_every_parameter_once():
    for config in (MISTRAL, SMOLLM3):
        spec = spec_of(config)
        assert sum(t.params for t in gguf_tensors(spec)) == spec.params


def test_a_head_count_that_fits_one_size_only_is_not_assumed():
    config = {k: v for k, v in MISTRAL.items() if k != "num_key_value_heads"}
    with pytest.raises(ConfigError, match="num_key_value_heads is missing"):
        spec_of(config)


def test_bad_windows_are_named():
    with pytest.raises(ConfigError, match="sliding_window is -1"):
        spec_of(MISTRAL, sliding_window=-1)
    with pytest.raises(ConfigError, match="no_rope_layers"):
        spec_of(SMOLLM3, no_rope_layers=[1])
