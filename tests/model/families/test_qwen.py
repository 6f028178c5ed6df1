"""Qwen2 and Qwen3 against transformers' classes."""

from __future__ import annotations

import pytest

from gateup.errors import ConfigError
from gateup.model.families import build_spec, gguf_tensors

QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 24,
    "intermediate_size": 52,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 97,
}
QWEN3 = {**QWEN2, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 10}


def spec_of(config, **changes):
    return build_spec({**config, **changes}, where="config.json", name="tiny")


def shapes(spec):
    return {n: r.shape for n, r in spec.tensors()}


@pytest.mark.parametrize(
    "config",
    [
        QWEN2,
        {**QWEN2, "tie_word_embeddings": True},
        QWEN3,
        {**QWEN3, "attention_bias": True},
        {k: v for k, v in QWEN3.items() if k != "head_dim"},
    ],
)
def test_tensors_are_those_of_the_class(class_tensors, config):
    assert shapes(spec_of(config)) == class_tensors(config)


@pytest.mark.parametrize(
    "hub_name",
    [
        "Qwen/Qwen2.5-0.5B",
        "Qwen/Qwen2.5-7B (also DeepSeek-R1-Distill-Qwen-7B)",
        "Qwen/Qwen3-0.6B",
        "Qwen/Qwen3-8B",
    ],
)
def test_totals_of_known_models(known_models, class_tensors, hub_name):
    facts = known_models[hub_name]
    keys = {*QWEN3, "tie_word_embeddings"}
    config = {k: v for k, v in facts.items() if k in keys}
    config["architectures"] = [facts["architecture"]]
    spec = spec_of(config)
    assert spec.params == facts["total_params_computed"]
    assert shapes(spec) == class_tensors(config)


def test_shares_of_qwen3_0_6b(known_models):
    facts = known_models["Qwen/Qwen3-0.6B"]
    spec = spec_of({**facts, "architectures": [facts["architecture"]]})
    assert round(100 * spec.part_params("mlp") / spec.params, 1) == 44.3
    layer = sum(r.params for r in spec.layer_rows(0))
    assert round(100 * spec.part_params("mlp", 0) / layer, 1) == 60.0


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sliding_window": 16},
        {"sliding_window": 16, "use_sliding_window": True},
        {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1},
        {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 0},
        {"use_sliding_window": True, "max_window_layers": 2},
        {"sliding_window": None, "use_sliding_window": True, "max_window_layers": 2},
        {
            "sliding_window": 16,
            "use_sliding_window": True,
            "max_window_layers": 0,
            "layer_types": ["sliding_attention", *["full_attention"] * 3],
        },
    ],
)
@pytest.mark.parametrize("family", [QWEN2, QWEN3], ids=["qwen2", "qwen3"])
def test_windows_are_the_class_s(family, changes):
    import transformers

    cls = getattr(transformers, family["architectures"][0]).config_class
    cfg = cls.from_dict({**family, **changes})
    expected = [cfg.sliding_window if t == "sliding_attention" else None for t in cfg.layer_types]
    assert [x.attention.window for x in spec_of(family, **changes).layers] == expected


def test_gguf_names():
    qwen2 = {t.name: t.ne for t in gguf_tensors(spec_of(QWEN2))}
    assert qwen2["blk.3.attn_v.bias"] == (8,)
    assert "blk.3.attn_output.bias" not in qwen2
    qwen3 = {t.name: t.ne for t in gguf_tensors(spec_of(QWEN3))}
    assert qwen3["blk.0.attn_q_norm.weight"] == (10,)
    assert qwen3["blk.0.attn_output.weight"] == (60, 24)


def test_layer_types_of_the_wrong_length_or_kind():
    with pytest.raises(ConfigError, match="a list of 4 layer types"):
        spec_of(QWEN2, layer_types=["full_attention"])
    with pytest.raises(ConfigError, match=r"layer_types\[2\] is 'other'"):
        spec_of(QWEN2, layer_types=["full_attention"] * 2 + ["other", "full_attention"])
