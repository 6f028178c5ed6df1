"""Rotary base and scaling against the positions that a config promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateup.checks import rope_rules, rope_scaling_rules
from gateup.checks.context import Context
from gateup.checks.finding import Finding
from gateup.checks.rule import rules_of
from gateup.errors import ConfigError
from gateup.files.checkpoint import open_model
from gateup.model.presets import PRESETS

RULES = {r.id: r for r in rules_of([rope_rules, rope_scaling_rules])}
Described = Callable[..., Context]


def config(preset: str, **changes: Any) -> dict[str, Any]:
    return {**PRESETS[preset].config, **changes}


def scaled(preset: str, **changes: Any) -> dict[str, Any]:
    """The preset with its scaling changed; a None takes the key away."""
    scaling = {**PRESETS[preset].config["rope_scaling"], **changes}
    return config(preset, rope_scaling={k: v for k, v in scaling.items() if v is not None})


def run(rule: str, context: Context) -> list[Finding]:
    return RULES[rule](context)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_known_models_are_sound(preset: str) -> None:
    context = Context(open_model(preset))
    for rule in RULES.values():
        assert list(rule(context)) == []


def test_the_demo_model_is_sound(smollm2_gguf: Path) -> None:
    context = Context(open_model(smollm2_gguf))
    for rule in RULES.values():
        assert list(rule(context)) == []


@pytest.mark.parametrize(
    ("preset", "base"),
    [("llama-3-8b", None), ("llama-3-8b", 10000.0), ("qwen2.5-7b", None), ("smollm2-1.7b", 10000)],
)
def test_a_lost_base(described: Described, preset: str, base: float | None) -> None:
    right = PRESETS[preset].config["rope_theta"]
    (found,) = run("semantics.rope_base", described(config(preset, rope_theta=base)))
    assert found.severity == "warning"
    assert dict(found.numbers) == {"found": 10000.0, "expected": right}
    assert found.remedy == f"write rope_theta: {right:.0f}"
    assert found.evidence[0].found == ("absent, so 10000" if base is None else "10000")


def test_a_larger_base_is_normal(described: Described) -> None:
    longer = config("llama-3-8b", rope_theta=2.8e8, max_position_embeddings=262144)
    assert run("semantics.rope_base", described(longer)) == []
    code = config("llama-2-7b", rope_theta=1e6, max_position_embeddings=16384, vocab_size=32016)
    assert run("semantics.rope_base", described(code)) == []


@pytest.mark.parametrize(
    ("preset", "promised", "trained"),
    [("llama-2-7b", 32768, 4096), ("llama-3-8b", 131072, 8192), ("qwen3-8b", 131072, 40960)],
)
def test_positions_without_scaling(
    described: Described, preset: str, promised: int, trained: int
) -> None:
    (found,) = run(
        "semantics.rope_base", described(config(preset, max_position_embeddings=promised))
    )
    assert found.severity == "warning"
    assert dict(found.numbers) == {"promised": promised, "trained": trained}
    linear = {"type": "linear", "factor": promised / trained}
    model = config(preset, max_position_embeddings=promised, rope_scaling=linear)
    assert run("semantics.rope_base", described(model)) == []


@pytest.mark.parametrize(
    ("preset", "trained"), [("llama-3.1-8b", 8192), ("llama-3.2-1b", 8192), ("phi-3.5-mini", 4096)]
)
def test_lost_scaling(described: Described, preset: str, trained: int) -> None:
    (found,) = run("semantics.rope_base", described(config(preset, rope_scaling=None)))
    assert found.numbers["trained"] == trained


def test_scaling_of_a_gguf_is_not_seen(described: Described) -> None:
    """Metadata give the base; how positions are scaled, the description does not keep."""
    plain = described(config("gpt-oss-20b", rope_scaling=None))
    assert len(run("semantics.rope_base", plain)) == 1
    gguf = replace(plain, checkpoint=replace(plain.checkpoint, kind="gguf"))
    assert run("semantics.rope_base", gguf) == []
    part = described(config("llama-3.1-8b", rope_scaling={"rope_type": "llama3"}))
    assert len(run("semantics.rope_scaling", part)) == 2  # keys, and the original limit
    gguf = replace(part, checkpoint=replace(part.checkpoint, kind="gguf"))
    assert run("semantics.rope_scaling", gguf) == []


def test_the_base_inside_rope_parameters(described: Described) -> None:
    new = config("llama-3-8b", rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    del new["rope_theta"]
    assert run("semantics.rope_base", described(new)) == []
    new["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    assert len(run("semantics.rope_base", described(new))) == 1


def test_one_base_for_each_kind_of_layer(described: Described) -> None:
    both = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
    }
    new = config("gemma-3-1b", rope_parameters=both)
    del new["rope_theta"]
    assert run("semantics.rope_base", described(new)) == []
    both["full_attention"]["rope_theta"] = 10000.0
    assert len(run("semantics.rope_base", described(new))) == 1


@pytest.mark.parametrize("base", [-1.0, 0])
def test_a_base_that_is_none(described: Described, base: float) -> None:
    (found,) = run("semantics.rope_base", described(config("llama-3-8b", rope_theta=base)))
    assert found.severity == "error"
    assert run("semantics.rope_base", described(config("bert-base"))) == []


def test_a_factor_of_1_is_a_factor(described: Described) -> None:
    linear = {"type": "linear", "factor": 1.0}
    assert run("semantics.rope_scaling", described(config("llama-2-7b", rope_scaling=linear))) == []
    linear["factor"] = 0.99
    assert (
        len(run("semantics.rope_scaling", described(config("llama-2-7b", rope_scaling=linear))))
        == 1
    )


def test_default_settings_are_no_scaling(described: Described) -> None:
    default = {"rope_type": "default", "factor": 0.5}
    model = config("llama-2-7b", rope_scaling=default)
    assert run("semantics.rope_scaling", described(model)) == []


def test_yarn_whose_product_is_not_the_limit(described: Described) -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    model = config("qwen2.5-7b", max_position_embeddings=32768, rope_scaling=yarn)
    (found,) = run("semantics.rope_scaling", described(model))
    assert found.severity == "note"  # Qwen's cards tell users to write it so
    assert found.title == (
        "yarn: 4 × 32,768 = 131,072 positions, but max_position_embeddings is 32,768"
    )
    assert found.remedy == "write max_position_embeddings: 131072, or factor: 1"
    model["max_position_embeddings"] = 131072
    assert run("semantics.rope_scaling", described(model)) == []


@pytest.mark.parametrize(("preset", "factor"), [("deepseek-v3", 32), ("gpt-oss-20b", 16.0)])
def test_more_of_yarn(described: Described, preset: str, factor: float) -> None:
    (found,) = run("semantics.rope_scaling", described(scaled(preset, factor=factor)))
    assert found.title.startswith(f"yarn: {factor:g} × 4,096")
    assert found.severity == "warning"


def test_a_context_cut_below_the_original_is_no_fault(described: Described) -> None:
    (found,) = run(
        "semantics.rope_scaling", described(config("gpt-oss-20b", max_position_embeddings=2048))
    )
    assert found.severity == "note"


@pytest.mark.parametrize("factor", [0, 0.5, -8, "8", True])
def test_a_factor_that_does_not_stretch(described: Described, factor: Any) -> None:
    (found,) = run("semantics.rope_scaling", described(scaled("llama-3.1-8b", factor=factor)))[:1]
    assert found.severity == "error"
    assert "factor of llama3 scaling" in found.title


def test_llama3_scaling_with_parts_missing(described: Described) -> None:
    model = scaled("llama-3.1-8b", low_freq_factor=None, high_freq_factor=None)
    (found,) = run("semantics.rope_scaling", described(model))
    assert found.severity == "error"
    assert found.title == "llama3 scaling lacks low_freq_factor, high_freq_factor"
    (found,) = run(
        "semantics.rope_scaling", described(scaled("llama-3.2-1b", high_freq_factor=1.0))
    )
    assert "is not above low_freq_factor" in found.title


def test_an_original_limit_above_the_new_one(described: Described) -> None:
    model = config("llama-3.1-8b", max_position_embeddings=4096)
    (found,) = run("semantics.rope_scaling", described(model))
    assert found.severity == "note"
    assert "8,192 is more than max_position_embeddings 4,096" in found.title


@pytest.mark.parametrize("key", ["short_factor", "long_factor"])
def test_longrope_with_too_few_factors(described: Described, key: str) -> None:
    for preset in ("phi-3.5-mini", "phi-4-mini"):
        (found,) = run("semantics.rope_scaling", described(scaled(preset, **{key: [1.0] * 47})))
        assert found.severity == "error"
        assert found.title == f"longrope: {key} has 47 of 48 factors"
        assert (found.evidence[0].found, found.evidence[0].expected) == ("47", "48")
        (found,) = run("semantics.rope_scaling", described(scaled(preset, **{key: 1.0})))
        assert found.evidence[0].found == "no list"
        (found,) = run("semantics.rope_scaling", described(scaled(preset, **{key: None})))
        assert found.title == f"longrope scaling lacks {key}"


@pytest.mark.parametrize("kind", ["ntk", "", 5, None])
def test_an_unknown_kind_of_scaling(described: Described, kind: Any) -> None:
    model = config("llama-2-7b", rope_scaling={"type": kind, "factor": 2.0})
    (found,) = run("semantics.rope_scaling", described(model))
    assert found.severity == "error"


@pytest.mark.parametrize("odd", [None, [], {}, "x", True, {"factor": {}}, {"type": []}, 10**400])
def test_odd_values_are_no_crash(described: Described, odd: Any) -> None:
    for key in ("rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor"):
        for preset in ("llama-3.1-8b", "phi-3.5-mini", "gemma-3-1b"):
            try:
                context = described(config(preset, **{key: odd}))
            except ConfigError:  # what cannot be described is not checked
                continue
            for rule in RULES.values():
                list(rule(context))


@pytest.mark.parametrize(
    ("value", "words"),
    [(1e30, "hardly a dimension turns"), (1.5, "alike"), (99, "alike"), (2e11, "hardly")],
)
def test_a_base_that_no_model_is_near(described: Described, value: float, words: str) -> None:
    for places in ({"rope_theta": value}, {"rope_parameters": {"rope_theta": value}}):
        (found,) = run("semantics.rope_base", described(config("llama-3-8b", **places)))
        assert found.severity == "warning"
        assert words in found.cause
        assert "llama models have 10000, 100000, 130000, 500000" in found.title


@pytest.mark.parametrize("value", [1e4, 4.5192e10])
def test_published_bases_are_plausible(described: Described, value: float) -> None:
    model = config("llama-2-7b", rope_theta=value, hidden_size=2048)
    assert run("semantics.rope_base", described(model)) == []
