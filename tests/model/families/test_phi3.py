"""Phi-3 and Phi-4 against transformers' class, the published total and llama.cpp's names."""

from __future__ import annotations

import pytest

from gateup.errors import ConfigError
from gateup.model.families import build_spec, gguf_tensors
from gateup.model.layout import GateUpLayout

PHI3 = {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "hidden_size": 24,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "pad_token_id": 0,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
}
LONG_ROPE = {"type": "longrope", "long_factor": [1.5, 2.5], "short_factor": [1.0, 1.1]}


def spec_of(**changes):
    return build_spec({**PHI3, **changes}, where="config.json", name="tiny")


def shapes(spec):
    return {n: r.shape for n, r in spec.tensors()}


@pytest.mark.parametrize(
    "changes",
    [{}, {"tie_word_embeddings": True}, {"num_key_value_heads": None}, {"head_dim": 10}],
    ids=str,
)
def test_tensors_are_those_of_the_class(class_tensors, changes):
    assert shapes(spec_of(**changes)) == class_tensors({**PHI3, **changes})


def test_total_of_phi_3_mini(known_models, class_tensors):
    facts = next(m for n, m in known_models.items() if n.startswith("microsoft/Phi-3-mini"))
    config = {**PHI3, **{k: v for k, v in facts.items() if k in PHI3}}
    config["architectures"] = ["Phi3ForCausalLM"]
    spec = build_spec(config, where="config.json", name="phi-3")
    assert spec.params == facts["total_params_computed"] == 3_821_079_552
    assert shapes(spec) == class_tensors(config)


@pytest.mark.parametrize(
    ("sizes", "total"),
    [
        # Phi-4-mini: rotary on three quarters of a head, tied
        ((3072, 8192, 32, 24, 8, 200064, True), 3_836_021_760),
        # Phi-4
        ((5120, 17920, 40, 40, 10, 100352, False), 14_659_507_200),
    ],
)
def test_totals_of_phi_4(class_tensors, sizes, total):
    keys = [k for k in PHI3 if k.startswith(("hidden", "inter", "num", "vocab"))]
    config = {**PHI3, **dict(zip([*keys, "tie_word_embeddings"], sizes, strict=True))}
    spec = build_spec(config, where="config.json", name="phi-4")
    assert spec.params == total
    assert shapes(spec) == class_tensors(config)


def test_gate_rows_come_first():
    assert spec_of().layers[0].mlp.layout == GateUpLayout("concat", "gate_up")


def test_one_window_for_all_layers_or_none():
    assert [x.attention.window for x in spec_of(sliding_window=2047).layers] == [2047] * 3
    assert [x.attention.window for x in spec_of(sliding_window=None).layers] == [None] * 3
    assert [x.attention.window for x in spec_of().layers] == [None] * 3


def test_gguf_keeps_the_fused_tensors_and_adds_the_rotary_tables():
    spec = spec_of(rope_scaling=LONG_ROPE)
    tensors = {t.name: t for t in gguf_tensors(spec)}
    assert tensors["blk.0.attn_qkv.weight"].ne == (24, 40)
    assert tensors["blk.0.ffn_up.weight"].ne == (24, 104)
    assert "blk.0.ffn_gate.weight" not in tensors
    assert tensors["rope_factors_long.weight"].ne == (2,)
    assert tensors["rope_factors_short.weight"].ne == (2,)
    assert sum(t.params for t in tensors.values()) == spec.params
    assert not any("rope_factors" in t.name for t in gguf_tensors(spec_of()))


def test_a_width_that_doubles_beyond_the_range_is_refused():
    with pytest.raises(ConfigError, match="field intermediate_size"):
        spec_of(intermediate_size=1 << 24)
