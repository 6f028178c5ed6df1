"""Every key of rotary scaling: absent, of another type, of the wrong sign; transformers judges."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError

from gateup.checks.context import Context
from gateup.checks.finding import Finding
from gateup.checks.rope_rules import rope_base
from gateup.checks.rope_scaling_rules import KINDS, rope_scaling
from gateup.model.presets import PRESETS

Described = Callable[..., Context]
LLAMA3 = PRESETS["llama-3.1-8b"].config["rope_scaling"]
# What transformers raises where it refuses such a config, or fails on it.
RAISED = (
    KeyError,
    TypeError,
    ValueError,
    RuntimeError,
    ZeroDivisionError,
    StrictDataclassError,
)

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 64,
    "long_factor": [2.0] * 64,
    "original_max_position_embeddings": 32768,
}
HEALTHY = [
    {"rope_type": "linear", "factor": 4.0},
    {"type": "dynamic", "factor": 4},
    YARN,
    {**YARN, "beta_fast": 32, "beta_slow": 1, "attention_factor": 1.2, "truncate": False},
    LLAMA3,
    {**LONG, "factor": 4.0},
    {"rope_type": "default"},
]


def without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k not in keys}


# What transformers 5 cannot build.
REFUSED = [
    {"rope_type": "linear"},
    {"type": "dynamic"},
    {"rope_type": "yarn"},
    without(YARN, "factor"),
    *(without(LLAMA3, k) for k in ("factor", "low_freq_factor", "high_freq_factor")),
    *({**LLAMA3, k: None} for k in ("factor", "low_freq_factor", "high_freq_factor")),
    {"rope_type": "longrope", "factor": 4.0},
    without(LONG, "short_factor"),
    without(LONG, "long_factor"),
    {"rope_type": "linear", "factor": "4"},
    {"rope_type": "dynamic", "factor": "4"},
    {**YARN, "factor": "4"},
    {**YARN, "original_max_position_embeddings": "32768"},
    {**YARN, "original_max_position_embeddings": 0},
    {**YARN, "original_max_position_embeddings": -1},
    {**YARN, "beta_fast": "32"},
    {**YARN, "beta_fast": -32},
    {**YARN, "mscale": "1", "mscale_all_dim": 1.0},
    *({**LLAMA3, k: "8"} for k in without(LLAMA3, "rope_type")),
    {**LLAMA3, "low_freq_factor": 0},
    {**LONG, "short_factor": [1.0] * 63},
    {**LONG, "short_factor": ["1"] * 64},
    {"rope_type": "yarnn", "factor": 4.0},
    {"type": "ntk", "factor": 4.0},
    {"type": "su", "factor": 4.0},
    {"rope_type": None, "factor": 4.0},
    {"rope_type": 3},
    "linear",
    [1],
    -1,
]
# What it builds, and computes something else with.
NONSENSE = [
    {"rope_type": "linear", "factor": 0},
    {"rope_type": "dynamic", "factor": -4.0},
    {**YARN, "factor": 0.5},
    {**YARN, "attention_factor": -1.0},
    {**YARN, "attention_factor": "1"},  # which fails on the first token
    {**LLAMA3, "factor": -8.0},
    {**LLAMA3, "high_freq_factor": 1.0},
    {**LLAMA3, "original_max_position_embeddings": -1},
    {**LONG, "long_factor": [-1.0] * 64},
    {**LONG, "factor": "4"},
]


def model(scaling: Any) -> dict[str, Any]:
    return {**PRESETS["llama-3.1-8b"].config, "rope_scaling": scaling}


def refuses(scaling: Any) -> bool:
    """Whether transformers fails on it."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    values = without(model(deepcopy(scaling)), "model_type", "architectures")  # it writes into it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            LlamaRotaryEmbedding(LlamaConfig(**values))
    except RAISED:
        return True
    return False


def findings(described: Described, scaling: Any) -> list[Finding]:
    return rope_scaling(described(model(scaling)))


def key(scaling: Any) -> str:
    return str(scaling)[:70]


@pytest.mark.parametrize("scaling", REFUSED, ids=key)
def test_what_transformers_cannot_build_is_an_error(described: Described, scaling: Any) -> None:
    assert refuses(scaling)
    assert "error" in {f.severity for f in findings(described, scaling)}


@pytest.mark.parametrize("scaling", NONSENSE, ids=key)
def test_what_computes_something_else_is_an_error(described: Described, scaling: Any) -> None:
    assert "error" in {f.severity for f in findings(described, scaling)}


@pytest.mark.parametrize("scaling", HEALTHY, ids=key)
def test_sound_scaling_says_nothing(described: Described, scaling: Any) -> None:
    assert not refuses(scaling)
    assert findings(described, scaling) == []


def test_the_kinds_are_those_of_transformers() -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    assert set(KINDS) == {"default", *ROPE_INIT_FUNCTIONS}


def test_the_missing_keys_are_the_evidence(described: Described) -> None:
    [found] = findings(
        described, {"rope_type": "llama3", "factor": 8.0, **without(YARN, "rope_type", "factor")}
    )
    assert found.title == "llama3 scaling lacks low_freq_factor, high_freq_factor"
    assert [(e.subject, e.found) for e in found.evidence] == [
        ("rope_scaling.low_freq_factor", "absent"),
        ("rope_scaling.high_freq_factor", "absent"),
    ]
    [found] = findings(described, without(YARN, "factor"))
    assert found.evidence[0].subject == "rope_scaling.factor"
    assert "the new limit of positions divided by the old one" in found.remedy


def test_a_kind_by_a_slip_of_the_pen(described: Described) -> None:
    for slip, meant in (("yarnn", '"yarn"'), ("Llama3", '"llama3"'), ("long_rope", '"longrope"')):
        [found] = findings(described, {"rope_type": slip, "factor": 4.0})
        assert found.severity == "error"
        assert found.remedy == f"write {meant}"
    [found] = findings(described, {"rope_type": "mrope", "factor": 4.0})
    assert "original config.json" in found.remedy


def test_what_only_some_programs_read_is_a_warning(described: Described) -> None:
    for scaling, words in (
        (without(YARN, "original_max_position_embeddings"), "transformers takes max_position"),
        ({**YARN, "factor": None}, "other programs do not"),
        ({**YARN, "beta_fast": 1, "beta_slow": 32}, "runs the wrong way"),
        ({"factor": 4.0}, "takes it for default and ignores factor"),
    ):
        assert not refuses(scaling)
        [found] = findings(described, scaling)
        assert found.severity == "warning"
        assert words in found.cause


def test_the_original_limit_may_stand_at_the_top(described: Described) -> None:
    """Phi-3 keeps it there, and calls longrope "su"."""
    phi = PRESETS["phi-3.5-mini"].config
    assert phi["original_max_position_embeddings"]
    assert "original_max_position_embeddings" not in phi["rope_scaling"]
    for kind in ("longrope", "su"):
        scaling = {**without(phi["rope_scaling"], "rope_type", "type"), "type": kind}
        assert rope_scaling(described({**phi, "rope_scaling": scaling})) == []


@pytest.mark.parametrize(
    ("where", "config"),
    [
        ("rope_theta", {"rope_theta": -1}),
        ("rope_theta", {"rope_theta": "10000"}),
        ("rope_theta", {"rope_theta": 1}),
        (
            "rope_parameters.rope_theta",
            {"rope_parameters": {"rope_theta": -1, "rope_type": "default"}},
        ),
        ("rope_parameters.rope_theta", {"rope_parameters": {"rope_theta": "1e4"}}),
    ],
)
def test_a_base_that_is_none_names_its_key(
    described: Described, where: str, config: dict[str, Any]
) -> None:
    [found] = rope_base(described({**PRESETS["llama-3-8b"].config, **config}))
    assert found.severity == "error"
    assert found.evidence[0].subject == where


def test_large_numbers_are_written_out(described: Described) -> None:
    [found] = rope_base(described({**PRESETS["llama-3-8b"].config, "rope_theta": -16777216}))
    assert found.title == "the rotary base is -16777216"
