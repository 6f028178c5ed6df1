"""Fields that no shape shows: known faults with their right answers, more of their kinds, twins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gateup.checks import semantics_rules
from gateup.checks.context import Context
from gateup.checks.finding import Finding
from gateup.checks.rule import rules_of
from gateup.errors import ConfigError
from gateup.files.checkpoint import open_model
from gateup.model.presets import PRESETS

RULES = {r.id: r for r in rules_of([semantics_rules])}
Described = Callable[..., Context]
TANH = "gelu_pytorch_tanh"


def config(preset: str, **changes: Any) -> dict[str, Any]:
    return {**PRESETS[preset].config, **changes}


def run(rule: str, context: Context) -> list[Finding]:
    return RULES[rule](context)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_known_models_are_sound(preset: str) -> None:
    context = Context(open_model(preset))
    for rule in RULES.values():
        assert [f.title for f in rule(context) if f.severity != "note"] == []


def test_the_demo_model_is_sound(smollm2_gguf: Path) -> None:
    context = Context(open_model(smollm2_gguf))
    for rule in RULES.values():
        assert list(rule(context)) == []


@pytest.mark.parametrize("absent", [True, False])
def test_gemma_means_the_tanh_form(described: Described, absent: bool) -> None:
    model = config("gemma-2b", hidden_act="gelu", hidden_activation=None)
    if absent:
        del model["hidden_activation"]
    (found,) = run("semantics.act", described(model))
    assert found.severity == "warning"
    assert found.title == f'hidden_act is "gelu"; gemma was trained with {TANH}'
    assert "4.7e-4" in found.cause
    assert TANH in found.remedy


def test_the_difference_between_the_two_forms_is_what_it_says() -> None:
    x = torch.linspace(-8, 8, 160001, dtype=torch.float64)
    gelu = torch.nn.functional.gelu
    worst = (gelu(x) - gelu(x, approximate="tanh")).abs().max().item()
    assert 4.6e-4 < worst <= 4.75e-4


def test_gemma_with_silu_is_an_error(described: Described) -> None:
    (found,) = run("semantics.act", described(config("gemma-7b", hidden_activation="silu")))
    assert found.severity == "error"
    assert "breaks down" in found.cause


def test_gemma_2_with_exact_gelu(described: Described) -> None:
    (found,) = run("semantics.act", described(config("gemma-2-9b", hidden_activation="gelu")))
    assert found.severity == "warning"
    assert "hidden_activation" in found.title


def test_hidden_activation_wins(described: Described) -> None:
    (found,) = run("semantics.act", described(config("gemma-2b", hidden_act="gelu")))
    assert found.severity == "note"


@pytest.mark.parametrize("act", [TANH, "gelu_new", None])
def test_gemma_that_says_what_it_means(described: Described, act: str | None) -> None:
    model = config("gemma-2b", hidden_act=act, hidden_activation=None)
    assert run("semantics.act", described(model)) == []


def test_another_name_of_silu(described: Described) -> None:
    (found,) = run("semantics.act", described(config("llama-3-8b", hidden_act="swish")))
    assert found.severity == "note"
    assert found.remedy == 'write "silu"'


def test_the_activations_are_those_of_transformers() -> None:
    from transformers.activations import ACT2FN

    assert set(ACT2FN) == semantics_rules.TRANSFORMERS_ACTS


@pytest.mark.parametrize(
    ("preset", "key", "act", "meant"),
    [
        ("llama-3-8b", "hidden_act", "swiglu", "silu"),
        ("llama-3-8b", "hidden_act", "gelu_tanh", TANH),
        ("mixtral-8x7b", "hidden_act", "identity", "linear"),
        ("gpt2", "activation_function", "gelu_tanh", TANH),
        ("gemma-2b", "hidden_act", "gelu_tanh", TANH),
        ("gemma-2-9b", "hidden_activation", "gelu_tanh", TANH),
        ("qwen3-8b", "hidden_act", None, "original"),
    ],
)
def test_an_activation_that_transformers_lacks(
    described: Described, preset: str, key: str, act: Any, meant: str
) -> None:
    (found,) = run("semantics.act", described(config(preset, **{key: act})))
    assert found.severity == "error"
    assert meant in found.remedy
    assert found.evidence[0].subject == key


def test_a_field_that_no_class_looks_up_may_say_anything(described: Described) -> None:
    """gpt-oss has its own; Gemma 2 reads hidden_activation; a GGUF's name is of gateup's making."""
    assert run("semantics.act", described(config("gpt-oss-20b", hidden_act="swiglu"))) == []
    found = run("semantics.act", described(config("gemma-2-9b", hidden_act="gelu_tanh")))
    assert "error" not in {f.severity for f in found}
    llama = described(config("llama-3-8b", hidden_act="swiglu"))
    gguf = replace(llama, checkpoint=replace(llama.checkpoint, kind="gguf"))
    assert run("semantics.act", gguf) == []


@pytest.mark.parametrize("act", ["gelu", "relu", TANH])
def test_another_activation_than_the_family_s(described: Described, act: str) -> None:
    (found,) = run("semantics.act", described(config("qwen3-8b", hidden_act=act)))
    assert found.severity == "warning"
    assert "every published qwen3 model has SiLU" in found.title


def test_eps_of_llama_1_in_llama_2(described: Described) -> None:
    (found,) = run("semantics.eps", described(config("llama-2-7b", rms_norm_eps=1e-6)))
    assert found.severity == "warning"
    assert found.title == "rms_norm_eps is 1e-06; llama-2-7b, of the same shape, has 1e-05"
    assert "5.8986" in found.cause
    assert "5.8283" in found.cause
    assert found.remedy == "write 1e-05"


@pytest.mark.parametrize(
    ("preset", "wrong"), [("llama-2-13b", 1e-6), ("qwen2.5-7b", 1e-5), ("mistral-7b", 1e-6)]
)
def test_more_of_eps(described: Described, preset: str, wrong: float) -> None:
    (found,) = run("semantics.eps", described(config(preset, rms_norm_eps=wrong)))
    assert found.severity == "warning"
    assert found.numbers["expected"] == PRESETS[preset].config["rms_norm_eps"]


def test_eps_that_is_right(described: Described) -> None:
    # The same sizes, told apart by their positions; float32 of GGUF metadata; added tokens.
    assert run("semantics.eps", described(config("llama-1-7b"))) == []
    assert run("semantics.eps", described(config("llama-2-7b"))) == []
    as_float32 = config("llama-2-7b", rms_norm_eps=9.999999747378752e-06)
    assert run("semantics.eps", described(as_float32)) == []
    assert run("semantics.eps", described(config("llama-2-7b", vocab_size=32001))) == []
    # Between the two: no one can tell.
    longer = config("llama-2-7b", rms_norm_eps=1e-6, max_position_embeddings=16384)
    assert run("semantics.eps", described(longer)) == []


def test_added_tokens_do_not_hide_a_wrong_eps(described: Described) -> None:
    model = config("llama-2-7b", rms_norm_eps=1e-6, vocab_size=32016)
    assert len(run("semantics.eps", described(model))) == 1
    assert run("semantics.eps", described({**model, "vocab_size": 64000})) == []


@pytest.mark.parametrize("eps", [0, -1e-5, "1e-5"])
def test_eps_that_is_no_eps(described: Described, eps: Any) -> None:
    (found,) = run("semantics.eps", described(config("llama-2-7b", rms_norm_eps=eps)))
    assert found.severity == "error"


def test_eps_out_of_all_proportion(described: Described) -> None:
    unknown = config("llama-2-7b", num_hidden_layers=5)
    assert run("semantics.eps", described({**unknown, "rms_norm_eps": 1e-6})) == []
    (found,) = run("semantics.eps", described({**unknown, "rms_norm_eps": 0.01}))
    assert found.severity == "warning"


def test_head_dim_is_not_a_quotient(described: Described) -> None:
    """Qwen3-4B: 147,456 bytes a token and 5.625 GiB at 40,960; 92,160 with head size 80."""
    (found,) = run("semantics.head_dim", described(config("qwen3-4b")))
    assert found.severity == "note"
    assert found.title == "head_dim is 128, not hidden_size / num_attention_heads = 80"
    assert found.numbers["kv_bytes_per_token"] == 147456
    assert found.numbers["kv_bytes_at_max"] == 147456 * 40960
    assert found.evidence[1].found == "147,456 bytes per token; 5.625 GiB at 40,960"
    assert found.evidence[1].expected == "92,160 with 80: 1.6 times off"


@pytest.mark.parametrize(
    ("preset", "dim", "times"), [("qwen3-0.6b", 128, 2), ("mistral-nemo", 128, 0.8)]
)
def test_more_head_dims(described: Described, preset: str, dim: int, times: float) -> None:
    (found,) = run("semantics.head_dim", described(config(preset)))
    assert found.numbers["head_dim"] == dim
    assert f"{times:g} times off" in found.evidence[1].expected


@pytest.mark.parametrize("preset", ["qwen3-8b", "llama-3-8b", "smollm2-135m", "gpt2"])
def test_head_dim_that_is_the_quotient(described: Described, preset: str) -> None:
    assert run("semantics.head_dim", described(config(preset))) == []


def test_odd_head_dim(described: Described) -> None:
    (found,) = run("semantics.head_dim", described(config("qwen3-4b", head_dim=127)))
    assert found.severity == "error"


@pytest.mark.parametrize(
    ("preset", "said"), [("llama-2-70b", None), ("llama-3-8b", None), ("mistral-7b", 16)]
)
def test_lost_kv_heads(described: Described, preset: str, said: int | None) -> None:
    (found,) = run("semantics.kv_heads", described(config(preset, num_key_value_heads=said)))
    assert found.severity == "warning"
    assert found.numbers["expected"] == 8
    heads = PRESETS[preset].config["num_attention_heads"]
    assert found.numbers["found"] == (said or heads)
    assert run("semantics.kv_heads", described(config(preset))) == []


def test_models_without_grouped_heads(described: Described) -> None:
    assert run("semantics.kv_heads", described(config("llama-2-7b"))) == []
    assert (
        run("semantics.kv_heads", described(config("llama-2-7b", num_key_value_heads=None))) == []
    )


def test_a_lost_tie(described: Described) -> None:
    (found,) = run("semantics.tied", described(config("qwen2.5-0.5b", tie_word_embeddings=False)))
    assert found.severity == "warning"
    assert found.numbers["head_parameters"] == 151936 * 896
    assert "random" in found.cause


@pytest.mark.parametrize(
    ("preset", "flag"), [("gemma-2-9b", False), ("llama-3.2-1b", None), ("llama-3-8b", True)]
)
def test_more_ties(described: Described, preset: str, flag: bool | None) -> None:
    (found,) = run("semantics.tied", described(config(preset, tie_word_embeddings=flag)))
    assert found.severity == "warning"
    assert run("semantics.tied", described(config(preset))) == []


@pytest.mark.parametrize("preset", ["gemma-2-9b", "gemma-3-4b", "qwen2-7b", "gpt-oss-20b"])
def test_float16_where_it_overflows(described: Described, preset: str) -> None:
    plain = config(preset, torch_dtype="float16", quantization_config=None)
    (found,) = run("semantics.dtype", described(plain))
    assert found.severity == "warning"
    assert found.numbers["float16_max"] == 65504
    assert "'!!!!'" in found.cause
    assert "bfloat16" in found.remedy


def test_float16_of_quantised_kernels_is_a_note(described: Described) -> None:
    awq = {"quant_method": "awq", "group_size": 128}
    model = config("qwen2.5-7b", torch_dtype="float16", quantization_config=awq)
    (found,) = run("semantics.dtype", described(model))
    assert found.severity == "note"


def test_dtypes_that_are_sound(described: Described) -> None:
    assert run("semantics.dtype", described(config("llama-2-7b"))) == []  # float16 from the start
    assert run("semantics.dtype", described(config("qwen2-7b"))) == []
    assert run("semantics.dtype", described(config("qwen2-7b", torch_dtype="float32"))) == []
    new = config("qwen2-7b", dtype="float16")
    del new["torch_dtype"]
    (found,) = run("semantics.dtype", described(new))
    assert found.evidence[0].subject == "dtype"


@pytest.mark.parametrize(
    ("preset", "key"),
    [("mistral-7b", "mlp_bias"), ("qwen2-7b", "attention_bias"), ("qwen3-8b", "mlp_bias")],
)
def test_biases_that_no_class_reads(described: Described, preset: str, key: str) -> None:
    (found,) = run("semantics.bias", described(config(preset, **{key: True})))
    assert found.severity == "warning"
    assert found.title.startswith(f"{key} true has no effect")


@pytest.mark.parametrize(
    ("preset", "key"),
    [("llama-3-8b", "mlp_bias"), ("llama-3-8b", "attention_bias"), ("qwen3-8b", "attention_bias")],
)
def test_biases_that_are_read(described: Described, preset: str, key: str) -> None:
    assert run("semantics.bias", described(config(preset, **{key: True}))) == []
    assert run("semantics.bias", described(config(preset, **{key: False}))) == []


@pytest.mark.parametrize("odd", [None, [], {}, "x", True, 1e400, float("nan"), -1, 10**400])
def test_odd_values_are_no_crash(described: Described, odd: Any) -> None:
    keys = ("rms_norm_eps", "hidden_activation", "rope_theta", "quantization_config", "mlp_bias")
    for key in keys:
        try:
            context = described(config("gemma-2b", **{key: odd}))
        except ConfigError:  # what cannot be described is not checked
            continue
        for rule in RULES.values():
            list(rule(context))


@pytest.mark.parametrize("value", [1.0, 1e30, 2])
@pytest.mark.parametrize("preset", ["llama-3-8b", "smollm2-135m"])
def test_an_eps_above_a_rows_mean_square_is_an_error(
    described: Described, preset: str, value: float
) -> None:
    (found,) = run("semantics.eps", described(config(preset, rms_norm_eps=value)))
    assert found.severity == "error"
    assert "every output small" in found.cause
