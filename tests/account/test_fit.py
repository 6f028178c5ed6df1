"""The verdict: fits or not, by what, and the longest context."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateup.account.fit import fit, max_context
from gateup.account.machine import GIB, Device, parse_device
from gateup.account.scenario import Scenario, stored_in
from gateup.account.workload import Engine, LoRA, Parallel, Training, Workload
from gateup.errors import UsageError
from gateup.model import presets


def question(
    name: str, fmt: str, device: str | Device | None, engine: Engine, **work: object
) -> Scenario:
    spec = presets.spec(name)
    workload = Workload(engine=engine, **work)  # type: ignore[arg-type]
    if isinstance(device, str):
        device = parse_device(device)
    return Scenario(spec, fmt, stored_in(spec, fmt), workload, device)


def test_llama_3_8b_at_32k_on_8_gb() -> None:
    """4,617,396,224 bytes of weights on the card and a 4 GiB cache: past 8 GB at any buffer."""
    s = question("llama-3-8b", "q4_k_m", "8GB", "llama.cpp", ctx=32768)
    v = fit(s)
    assert not v.fits
    assert v.peak == s.memory().peak
    assert v.peak > 4_617_396_224 + 4 * GIB
    assert v.capacity == 8 * 10**9 - GIB // 2
    assert (v.phase, v.group) == ("compute", "weights")
    assert v.max_context == 8192
    note = "max_position_embeddings 8,192 limits the context; memory holds "
    assert v.notes[0].startswith(note)
    held = int(v.notes[0].removeprefix(note).removesuffix(" tokens").replace(",", ""))
    assert s.with_(ctx=held).memory().peak <= v.capacity < s.with_(ctx=held + 1).memory().peak
    assert v.host.value == 128256 * 4096 * 144 // 256
    assert v.remedies
    assert v.smallest is None


def test_what_fits_needs_no_remedy() -> None:
    v = fit(question("llama-3-8b", "q4_k_m", "24GB", "llama.cpp", ctx=8192))
    assert v.fits
    assert v.remedies == ()
    assert v.peak <= v.capacity


def test_at_the_very_edge() -> None:
    """A device with exactly the peak fits; with one byte less it does not."""
    s = question("llama-3-8b", "q4_k_m", None, "llama.cpp", ctx=8192)
    need = s.memory().peak
    for memory, fits in ((need, True), (need - 1, False)):
        v = fit(dataclasses.replace(s, device=Device("edge", memory, kind="cpu")))
        assert (v.fits, v.capacity) == (fits, memory)


@pytest.mark.parametrize(
    ("work", "group", "phase"),
    [
        ({"ctx": 128, "batch": 1}, "weights", None),
        ({"ctx": 131072, "batch": 8, "ubatch": 512, "engine": "vllm"}, "kv", None),
        ({"ctx": 131072, "batch": 64, "engine": "transformers"}, "mlp", "mlp"),
        ({"ctx": 8192, "batch": 64, "engine": "transformers", "last_logits": False}, "logits",
         "logits"),
        ({"ctx": 8192, "engine": "transformers", "flash": False}, "attention", "attention"),
    ],
)  # fmt: skip
def test_the_peak_is_named(work: dict[str, object], group: str, phase: str | None) -> None:
    engine: Engine = work.pop("engine", "llama.cpp")  # type: ignore[assignment]
    name, fmt = {
        "weights": ("llama-3-8b", "q4_k_m"),
        "mlp": ("qwen2.5-0.5b", "bf16"),  # 29,184 bytes per token, its cache 12,288
    }.get(group, ("smollm2-135m", "f16"))
    v = fit(question(name, fmt, "1000TB", engine, **work))
    assert v.group == group
    assert phase in (None, v.phase)


def test_lora_on_24_gb() -> None:
    training = Training(method="lora", lora=LoRA(16, targets=("all",)))
    v = fit(question("llama-3-8b", "bf16", "24GB", "transformers", ctx=8192, training=training))
    assert not v.fits
    assert v.phase == "logits"  # 8,192·128,256 logits at 14 bytes beside what is saved
    assert v.remedies
    assert all(r.scenario.workload.training is not None for r in v.remedies)


def test_two_ways_tensor_parallel() -> None:
    v = fit(question("qwen3-30b-a3b", "bf16", "rtx4090", "vllm", parallel=Parallel(tp=2)))
    assert v.scenario.device is not None
    assert v.scenario.device.count == 2
    assert v.scenario.notes == ("the split takes 2 of RTX 4090",)
    weights = sum(i.nbytes for i in v.scenario.memory().items if i.group == "weights")
    assert 30.5e9 < weights < 31e9  # half of 61 GB, KV heads and norms on both


def test_three_cards_cannot_split_heads() -> None:
    v = fit(question("llama-3-8b", "bf16", "3x12GB", "vllm", ctx=8192))
    assert v.scenario.workload.parallel == Parallel(pp=3)
    with pytest.raises(UsageError, match="cannot be split over 3"):
        fit(question("llama-3-8b", "bf16", "3x12GB", "vllm", parallel=Parallel(tp=3)))


def test_nothing_fits_and_the_smallest_is_named() -> None:
    v = fit(question("llama-3-8b", "q4_k_m", "1MB", "llama.cpp", ctx=32768))
    assert (v.fits, v.remedies, v.max_context) == (False, (), 0)
    assert v.smallest is not None
    assert v.capacity < v.smallest < v.peak
    assert v.notes == (
        "not even one token of context fits",
        f"nothing tried fits; the smallest peak found is {v.smallest:,} bytes",
    )


def test_no_device_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        fit(question("llama-3-8b", "q4_k_m", None, "llama.cpp"))
    assert str(caught.value) == "no device to fit\n  remedy: give one: --device 24GB"


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["llama-3-8b", "qwen3-0.6b", "gemma-3-4b", "mixtral-8x7b", "deepseek-v2-lite"]),
    st.sampled_from(["llama.cpp", "transformers", "vllm"]),
    st.integers(10**9, 60 * 10**9),
    st.integers(1, 4),
)
def test_the_longest_context_is_the_longest(
    name: str, engine: Engine, capacity: int, batch: int
) -> None:
    fmt = "q4_k_m" if engine == "llama.cpp" else "bf16"
    s = question(name, fmt, None, engine, batch=batch)
    longest, notes = max_context(s, capacity)
    limit = s.spec.max_position_embeddings
    assert limit is not None
    assert 0 <= longest <= limit
    if longest:
        assert s.with_(ctx=longest).memory().peak <= capacity
    if longest < limit:
        assert s.with_(ctx=longest + 1).memory().peak > capacity
    else:
        assert notes


def test_without_a_limit_in_the_config() -> None:
    s = question("llama-3-8b", "q4_k_m", None, "llama.cpp")
    s = dataclasses.replace(s, spec=dataclasses.replace(s.spec, max_position_embeddings=None))
    longest, notes = max_context(s, 8 * GIB)
    assert s.with_(ctx=longest).memory().peak <= 8 * GIB < s.with_(ctx=longest + 1).memory().peak
    assert notes == ()
    longest, notes = max_context(s, 10**15)
    assert longest == 1 << 30
    assert notes == ("memory holds 1,073,741,824 tokens and more; the config states no limit",)


def test_a_context_past_the_models_own() -> None:
    s = question("llama-3-8b", "q4_k_m", None, "llama.cpp", ctx=100_000)
    longest, notes = max_context(s, 10**15)
    assert longest == 8192
    assert notes == (
        "max_position_embeddings 8,192 limits the context; memory holds at least 100,000 tokens",
    )


def test_no_torch_is_imported() -> None:
    """In a fresh interpreter, with everything of this side of the house loaded."""
    code = "import sys, gateup.account.fit, gateup.account.measure; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "False"
