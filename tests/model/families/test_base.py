"""What families share: activations by transformers' names, dtypes, biases in name tables."""

from __future__ import annotations

import pytest

from gateup.errors import ConfigError
from gateup.model.config import Config
from gateup.model.families.base import ACTIVATIONS, Names, Rows, activation, dtype, gqa, with_bias


def test_activation_names_mean_what_transformers_computes():
    import torch
    from transformers.activations import ACT2FN

    formulas = {
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "relu": torch.nn.functional.relu,
        "relu2": lambda x: torch.nn.functional.relu(x) ** 2,
        "sigmoid": torch.sigmoid,
        "identity": lambda x: x,
    }
    x = torch.linspace(-6, 6, 97, dtype=torch.float64)
    ours_only = {"swiglu", "gelu_tanh", "identity"}
    assert set(ACTIVATIONS) - ours_only <= set(ACT2FN)
    for name in set(ACTIVATIONS) - ours_only:
        torch.testing.assert_close(ACT2FN[name](x), formulas[ACTIVATIONS[name]](x))


@pytest.mark.parametrize("name", ["quick_gelu", "mish", "", "SiLU", "gelu_10"])
def test_other_activations_are_refused(name):
    with pytest.raises(ConfigError, match="hidden_act is"):
        activation(Config({"hidden_act": name}, "config.json"))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, None),
        ({"torch_dtype": "auto"}, None),
        ({"torch_dtype": "bfloat16"}, "bf16"),
        ({"dtype": "float16"}, "f16"),
        ({"torch_dtype": "torch.float32"}, "f32"),
        ({"dtype": "float8_e4m3fn"}, "f8_e4m3"),
    ],
)
def test_dtype(values, expected):
    assert dtype(Config(values, "config.json")) == expected


@pytest.mark.parametrize("value", ["int3", 16, ["bfloat16"]])
def test_other_dtypes_are_refused(value):
    with pytest.raises(ConfigError, match="field torch_dtype"):
        dtype(Config({"torch_dtype": value}, "config.json"))


def test_with_bias_covers_every_dialect():
    table = with_bias({"q": Names("a.weight", "b.weight", None, "c.layer_norm_weight")})
    assert table["q.bias"] == Names("a.bias", "b.bias", None, "c.layer_norm_bias")
    assert "p.bias" not in with_bias({"p": Names("experts.gate_up_proj")})


def test_head_dim_is_read_before_it_is_computed():
    heads = {"num_attention_heads": 4, "num_key_value_heads": None}
    assert gqa(Config(heads, ""), 32).head_dim == 8
    assert gqa(Config({**heads, "head_dim": 24}, ""), 30).head_dim == 24
    with pytest.raises(ConfigError, match="hidden_size 30 is not a multiple"):
        gqa(Config(heads, ""), 30)


def test_rows_fill_in_layer_and_expert():
    rows = Rows({"w": Names("l.{i}.e.{e}.w")})
    rows.add("w", (2, 3), "mlp", 7, copies=1)
    rows.add("w", (2, 3), "mlp", 7, copies=4, experts=4, active=2)
    one, four = rows.list
    assert (one.name, four.name) == ("l.7.e.0.w", "l.7.e.{e}.w")
    assert (four.params, four.active_params) == (24, 12)
    assert list(four.names()) == [f"l.7.e.{e}.w" for e in range(4)]
