"""Flags by name, and the compute buffer against sizes llama.cpp itself logged."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from gateup.account import engines
from gateup.account.engines import (
    BUFFER_ERROR,
    FLAGS,
    compute_buffer_phases,
    flags,
    llamacpp_compute_buffer,
    supports,
)
from gateup.account.workload import Workload
from gateup.errors import UsageError
from gateup.model.families import build_spec
from gateup.model.spec import ModelSpec

GOLDEN = json.loads((Path(__file__).parents[1] / "facts" / "compute_buffer.json").read_text())


def spec_of(name: str, vocab: int) -> ModelSpec:
    return build_spec({**GOLDEN["models"][name], "vocab_size": vocab}, where=name, name=name)


def workload(ubatch: int, ctx: int, flash: int, kv: str) -> Workload:
    return Workload(ctx=ctx, ubatch=ubatch, flash=bool(flash), kv_type=kv, engine="llama.cpp")


def errors() -> dict[tuple[Any, ...], float]:
    """Relative error of the estimate at every point measured."""
    specs: dict[tuple[str, int], ModelSpec] = {}
    out = {}
    for name, vocab, ubatch, ctx, flash, kv, measured in GOLDEN["points"]:
        if (name, vocab) not in specs:
            specs[name, vocab] = spec_of(name, vocab)
        figure = llamacpp_compute_buffer(specs[name, vocab], workload(ubatch, ctx, flash, kv))
        out[name, vocab, ubatch, ctx, flash, kv] = figure.value / measured - 1
    return out


def test_the_estimate_keeps_its_stated_error_on_every_point_measured() -> None:
    found = errors()
    low, high = BUFFER_ERROR
    assert len(found) == 680
    assert min(found.values()) >= low - 0.005
    assert max(found.values()) <= high + 0.005
    # The stated error is no looser than it must be, and most points are far closer.
    assert min(found.values()) < low + 0.01
    assert max(found.values()) > high - 0.01
    near = sum(abs(e) <= 0.05 for e in found.values())
    assert near >= 0.75 * len(found)


def test_the_build_measured_is_the_build_named() -> None:
    assert GOLDEN["build"] == engines.BUFFER_BUILD
    figure = llamacpp_compute_buffer(spec_of("llama-3-8b", 128256), workload(512, 4096, 1, "f16"))
    assert figure.kind == "estimate"
    assert engines.BUFFER_BUILD in figure.source
    assert "-19% to +18%" in figure.source


def test_formulas_as_measured_for_a_dense_model() -> None:
    """98.5 MiB at Llama-2-7B's sizes and 2,048 cells, 266.5 MiB of logits at Llama-3-8B's."""
    seven = llamacpp_compute_buffer(spec_of("llama-2-7b", 1024), workload(512, 2048, 1, "f16"))
    assert seven.value == 512 * (12 * 11008 + 16 * 4096 + 2 * 2048)
    assert round(seven.value / 2**20, 1) == 98.5
    assert seven.formula == "n_ubatch·(12·I + 16·H + mask)"
    assert seven.numbers == "512·(12·11008 + 16·4096 + 4096)"
    eight = llamacpp_compute_buffer(spec_of("llama-3-8b", 128256), workload(512, 16384, 1, "f16"))
    assert eight.value == 512 * (4 * 128256 + 8 * 4096)
    assert round(eight.value / 2**20, 1) == 266.5
    assert eight.formula == "n_ubatch·(4·V + 8·H)"


def test_without_flash_attention_the_scores_grow_with_heads_and_context() -> None:
    spec = spec_of("llama-3-8b", 128256)
    phases = compute_buffer_phases(spec, workload(512, 16384, 0, "f16"))
    assert max(phases.values(), key=lambda p: p.per_token).name == "attention"
    longer = compute_buffer_phases(spec, workload(512, 32768, 0, "f16"))
    growth = longer["attention"].per_token - phases["attention"].per_token
    assert growth == (4 * 32 + 4) * 16384


def test_the_buffer_grows_with_ubatch_and_stops_at_the_context() -> None:
    spec = spec_of("llama-3-8b", 128256)
    one, two, capped = (
        llamacpp_compute_buffer(spec, workload(u, 1024, 1, "f16")).value for u in (512, 1024, 4096)
    )
    assert two == 2 * one == capped
    four = dataclasses.replace(workload(4096, 1024, 1, "f16"), batch=4)
    assert llamacpp_compute_buffer(spec, four).value == 4 * capped


def test_a_moe_layer_counts_the_experts_in_use() -> None:
    spec = spec_of("mixtral-like", 1024)
    mlp = compute_buffer_phases(spec, workload(512, 512, 1, "f16"))["mlp"]
    assert mlp.numbers.startswith("12·2·3584 + ")


def test_a_layer_without_parts_costs_no_phase() -> None:
    spec = spec_of("llama-2-7b", 1024)
    bare = dataclasses.replace(
        spec, layers=tuple(dataclasses.replace(x, attention=None, mlp=None) for x in spec.layers)
    )
    assert list(compute_buffer_phases(bare, workload(512, 512, 1, "f16"))) == ["logits"]


# ---- flags -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "changes", "text"),
    [
        ("llama.cpp", {"ctx": 8192, "ubatch": 256}, "-c 8192 -ub 256"),
        ("llama.cpp", {"ctx": 4096, "batch": 4}, "-c 16384 -np 4"),
        ("llama.cpp", {"kv_type": "q8_0"}, "-ctk q8_0 -ctv q8_0 -fa on"),
        ("llama.cpp", {"kv_type": "f16"}, "-ctk f16 -ctv f16"),
        ("llama.cpp", {"gpu_layers": 20}, "-ngl 20"),
        ("llama.cpp", {"gpu_layers": 99, "cpu_moe_layers": 12}, "-ngl 99 --n-cpu-moe 12"),
        ("llama.cpp", {"flash": False}, "-fa off"),
        ("llama.cpp", {"quant": "q4_k_m"}, "-m MODEL-Q4_K_M.gguf"),
        ("vllm", {"ctx": 8192, "batch": 16}, "--max-model-len 8192 --max-num-seqs 16"),
        ("vllm", {"kv_type": "f8_e4m3"}, "--kv-cache-dtype fp8_e4m3"),
        ("vllm", {"tp": 2, "ep": 2}, "--tensor-parallel-size 2 --enable-expert-parallel"),
        ("vllm", {"quant": "awq:128"}, "--quantization awq"),
        ("vllm", {"quant": "bf16"}, "--dtype bfloat16"),
        ("llama-factory", {"ctx": 2048, "rank": 8}, "cutoff_len=2048 lora_rank=8"),
        ("llama-factory", {"quant": "nf4:double"}, "quantization_bit=4"),
        ("llama-factory", {"targets": ("mlp",)}, "lora_target=gate_proj,up_proj,down_proj"),
        ("llama-factory", {"optimizer": "adamw8bit"}, "optim=adamw_bnb_8bit"),
        ("llama-factory", {"checkpointing": "layer"}, "disable_gradient_checkpointing=false"),
    ],
)
def test_flags(engine: str, changes: dict[str, Any], text: str) -> None:
    assert flags(engine, **changes) == text
    assert all(supports(engine, k, v) for k, v in changes.items())


def test_flags_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UsageError, match="vllm has no flag for 'gpu_layers'"):
        flags("vllm", gpu_layers=3)
    with pytest.raises(UsageError, match="vllm does not take kv_type=q8_0"):
        flags("vllm", kv_type="q8_0")
    with pytest.raises(UsageError, match="engine 'ollama' is not known"):
        flags("ollama", ctx=3)
    assert not supports("vllm", "kv_type", "q8_0")
    assert not supports("ollama", "ctx", 1)


def test_every_engine_can_change_the_context() -> None:
    assert all("ctx" in table for table in FLAGS.values())


def test_the_command_that_quantises() -> None:
    command = engines.quantize_command("q4_k_m")
    assert command == "llama-quantize MODEL-BF16.gguf MODEL-Q4_K_M.gguf Q4_K_M"
