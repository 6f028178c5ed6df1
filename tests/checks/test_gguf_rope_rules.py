"""A GGUF's rotary scaling: what its metadata contradict, and what known models have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateup.checks.context import Context
from gateup.checks.finding import Finding
from gateup.checks.gguf_rope_rules import gguf_rope as rule
from gateup.files.header import TensorHeader
from gateup.model.presets import PRESETS

Described = Callable[..., Context]
YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 32768}


@pytest.fixture
def run(described: Described) -> Callable[..., list[Finding]]:
    """(preset, keys under rope.scaling, tensors, arch) -> findings of such a GGUF."""

    def check(
        preset: str, scaling: Mapping[str, Any], *tensors: str, arch: str = "llama", **config: Any
    ) -> list[Finding]:
        plain = {k: v for k, v in PRESETS[preset].config.items() if k != "rope_scaling"}
        context = described({**plain, **config})
        headers = tuple(
            TensorHeader(n, None, "f32", (64,), 0, 256, Path("m.gguf"))
            for n in ("token_embd.weight", *tensors)
        )
        metadata = {"general.architecture": arch}
        metadata |= {f"{arch}.rope.scaling.{k}": v for k, v in scaling.items()}
        checkpoint = replace(context.checkpoint, kind="gguf", headers=headers, metadata=metadata)
        return list(rule(replace(context, checkpoint=checkpoint)))

    return check


Run = Callable[..., list[Finding]]


def test_llama_3_1_without_its_factors(run: Run) -> None:
    (found,) = run("llama-3.1-8b", {})
    assert found.severity == "warning"
    assert found.title == (
        "rope_freqs.weight is not in the file: the llama3 scaling of llama-3.1-8b is lost"
    )
    assert "reads well up to 8,192 tokens" in found.cause
    assert run("llama-3.1-8b", {}, "rope_freqs.weight") == []
    assert run("llama-3-8b", {}) == []  # of the same sizes, and never scaled


def test_phi_3_5_without_its_tables(run: Run) -> None:
    (found,) = run("phi-3.5-mini", {}, arch="phi3")
    assert "rope_factors_long.weight is not in the file" in found.title
    (found,) = run("phi-3.5-mini", {"type": "longrope"}, arch="phi3")
    assert "rotary scaling is longrope, and rope_factors_long.weight" in found.title
    tables = ("rope_factors_long.weight", "rope_factors_short.weight")
    assert run("phi-3.5-mini", {}, *tables, arch="phi3") == []


def test_yarn_against_a_known_model(run: Run) -> None:
    right = {"type": "yarn", "factor": 32.0, "original_context_length": 4096}
    assert run("gpt-oss-20b", right, arch="gpt-oss") == []
    (found,) = run("gpt-oss-20b", {}, arch="gpt-oss")
    assert found.title == "rotary scaling is none; gpt-oss-20b has yarn, factor 32"
    wrong = {**right, "factor": 64.0}
    (found,) = run("gpt-oss-20b", wrong, arch="gpt-oss")
    assert found.title == "rotary scaling is yarn, factor 64; gpt-oss-20b has yarn, factor 32"


@pytest.mark.parametrize(
    ("scaling", "title"),
    [
        ({"type": "ntk"}, "the kind of rotary scaling is 'ntk'"),
        ({"type": 3}, "the kind of rotary scaling is '3'"),
        ({"type": "linear"}, "rotary scaling is linear, and its factor is absent: nothing is"),
        ({"type": "yarn", "factor": 0.0}, "rotary scaling is yarn, and its factor is 0: nothing"),
        (YARN, "yarn: 4 × 32,768 = 131,072 positions; 262,144 are promised"),
    ],
)
def test_metadata_that_contradict_themselves(run: Run, scaling: dict[str, Any], title: str) -> None:
    (found,) = run("qwen2.5-7b", scaling, arch="qwen2", max_position_embeddings=262144)
    assert found.severity == "warning"
    assert found.title.startswith(title)


@pytest.mark.parametrize("scaling", [{}, {"type": "none"}, YARN, {"type": "linear", "factor": 4.0}])
def test_sound_metadata_are_silent(run: Run, scaling: dict[str, Any]) -> None:
    assert run("qwen2.5-7b", scaling, arch="qwen2", max_position_embeddings=131072) == []


def test_only_ggufs_are_looked_at(described: Described) -> None:
    config = {k: v for k, v in PRESETS["llama-3.1-8b"].config.items() if k != "rope_scaling"}
    assert list(rule(described(config))) == []
