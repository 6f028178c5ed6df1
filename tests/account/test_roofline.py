"""Bounds on tokens per second, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateup.account.flops import prefill_flops
from gateup.account.machine import GIB, GPUS, Device
from gateup.account.roofline import peak_flops, roofline
from gateup.account.scenario import Scenario, stored_in
from gateup.account.workload import Engine, LoRA, Parallel, Training, Workload
from gateup.model import presets

CARD = Device("card", 80 * GIB, 10**12, {"bf16": 1e14, "f16": 2e14, "i8": 4e14, "f32": 2e13})


def question(
    name: str = "llama-3-8b",
    fmt: str = "bf16",
    device: Device | None = CARD,
    engine: Engine = "vllm",
    **work: object,
) -> Scenario:
    spec = presets.spec(name)
    return Scenario(
        spec,
        fmt,
        stored_in(spec, fmt),
        Workload(engine=engine, **work),  # type: ignore[arg-type]
        device,
    )


def test_decode_is_bandwidth_over_bytes() -> None:
    """Llama-3-8B in bf16: every weight but the embedding, one row of it, and the cache."""
    ctx = 1000
    weights = 2 * (8_030_261_248 - 128256 * 4096) + 2 * 4096
    cache = 2 * 32 * 8 * 128 * ctx * 2
    decode = roofline(question(ctx=ctx))["decode"]
    assert decode.value == pytest.approx(1e12 / (weights + cache))
    assert (decode.unit, decode.kind) == ("tokens/s", "bound")
    assert decode.formula == "B / max(bytes / bandwidth, FLOPs / peak)"
    assert decode.numbers.startswith(f"1 / max({weights + cache} / 1e+12, ")
    assert decode.source.startswith("memory bandwidth binds")


def test_prefill_is_peak_over_flops() -> None:
    s = question(ctx=4096, batch=2)
    flops = prefill_flops(s.spec, 4096, batch=2).total
    prefill = roofline(s)["prefill"]
    assert prefill.value == pytest.approx(4096 * 2 / (flops / 1e14))
    assert prefill.source.startswith("compute binds")
    assert "1e+14 bf16" in prefill.numbers


def test_a_large_batch_turns_to_compute() -> None:
    """The weights are read once for all sequences, until their FLOPs take longer."""
    one, many = (roofline(question(ctx=16, batch=b))["decode"] for b in (1, 4096))
    assert one.source.startswith("memory")
    assert many.source.startswith("compute")
    assert many.value > 50 * one.value


def test_more_cards() -> None:
    one = roofline(question(ctx=1000))
    tp = roofline(question(ctx=1000, parallel=Parallel(tp=4), device=replace(CARD, count=4)))
    pp = roofline(question(ctx=1000, parallel=Parallel(pp=4), device=replace(CARD, count=4)))
    for key in ("decode", "prefill"):
        assert tp[key].value == pytest.approx(4 * one[key].value)
    assert pp["decode"].value == pytest.approx(one["decode"].value)  # one stage after another
    assert pp["prefill"].value == pytest.approx(4 * one["prefill"].value)


def test_experts_not_chosen_are_not_read() -> None:
    dense = roofline(question("qwen3-30b-a3b", ctx=1000))["decode"]
    spec = presets.spec("qwen3-30b-a3b")
    assert dense.value == pytest.approx(1e12 / (2 * spec.active_params), rel=0.15)
    assert dense.kind == "bound"
    batch = roofline(question("qwen3-30b-a3b", ctx=1000, batch=8))["decode"]
    assert batch.kind == "estimate"  # how many experts eight tokens hit depends on the router


def test_only_what_is_on_the_card_counts() -> None:
    s = question(fmt="q4_k_m", engine="llama.cpp", ctx=1000)
    half = replace(s, gpu_layers=17)
    whole, part = roofline(s)["decode"], roofline(half)["decode"]
    assert part.value > 1.5 * whole.value
    assert "the host's share takes time on top" in part.source
    assert "host" not in whole.source


@pytest.mark.parametrize(
    ("fmt", "engine", "compute", "card", "dtype"),
    [
        ("bf16", "vllm", "bf16", "rtx4090", "bf16"),
        ("f16", "vllm", "f16", "rtx4090", "f16"),
        ("f32", "transformers", "f32", "rtx4090", "f32"),
        ("q4_k_m", "llama.cpp", "bf16", "rtx4090", "i8"),
        ("q4_k_m", "llama.cpp", "bf16", "v100-32gb", "f16"),
        ("fp8", "vllm", "bf16", "h100-sxm", "f8_e4m3"),
        ("fp8", "vllm", "bf16", "a100-80gb", "f16"),
        ("awq:128", "vllm", "f16", "a100-80gb", "f16"),
        ("int8", "vllm", "bf16", "a100-80gb", "i8"),
    ],
)
def test_the_fastest_peak_that_could_apply(
    fmt: str, engine: Engine, compute: str, card: str, dtype: str
) -> None:
    s = question(fmt=fmt, engine=engine, compute_dtype=compute)
    found = peak_flops(s, GPUS[card])
    assert found == (GPUS[card].flops[dtype], dtype)


def test_without_bandwidth_there_is_no_bound() -> None:
    assert roofline(question(device=None)) == {}
    assert roofline(question(device=Device("ram", 8 * GIB, kind="cpu"))) == {}


def test_without_a_peak_bandwidth_alone_bounds_decode() -> None:
    found = roofline(question(fmt="q4_k_m", engine="llama.cpp", device=GPUS["m4-max-64gb"]))
    assert list(found) == ["decode"]
    assert found["decode"].numbers.endswith("no known peak)")


def test_training() -> None:
    """A LoRA step: 4 FLOPs per frozen parameter and token, and a little more."""
    training = Training(method="lora", lora=LoRA(16))
    s = question(ctx=1024, engine="transformers", training=training)
    found = roofline(s)
    assert list(found) == ["train"]
    params = 8_030_261_248 - 128256 * 4096
    assert found["train"].value == pytest.approx(1e14 / (4 * params), rel=0.06)
    full = roofline(s.with_(training=Training(method="full")))["train"]
    assert full.value == pytest.approx(1e14 / (6 * params), rel=0.06)
    shards = roofline(s.with_(fsdp=4))["train"]
    assert shards.value == pytest.approx(4 * found["train"].value, rel=1e-6)
