"""Every remedy is recomputed: it fits, it is unlike the others, and its flags say what it does."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateup.account.axes import GGUF_LADDER, axes_of
from gateup.account.machine import GPUS, Device, parse_device
from gateup.account.memory import memory
from gateup.account.remedies import LIMIT, Remedy, find_remedies, flags_of
from gateup.account.scenario import Scenario, stored_in
from gateup.account.search import LOSSES
from gateup.account.workload import Engine, LoRA, Parallel, Training, Workload
from gateup.model import presets

LORA = Training(method="lora", lora=LoRA(16))
FULL = Training(method="full")


def question(name: str, fmt: str, device: str, engine: Engine, **work: object) -> Scenario:
    spec = presets.spec(name)
    workload = Workload(engine=engine, **work)  # type: ignore[arg-type]
    s = Scenario(spec, fmt, stored_in(spec, fmt), workload, parse_device(device))
    return s.spread()


def capacity(s: Scenario) -> int:
    assert s.device is not None
    return s.device.capacity(s.workload.engine)


def remedies(s: Scenario) -> tuple[Remedy, ...]:
    return find_remedies(s, capacity(s))[0]


CASES = {
    "llama.cpp": ("llama-3-8b", "q4_k_m", "8GB", "llama.cpp", {"ctx": 32768}),
    "moe": ("qwen3-30b-a3b", "q4_k_m", "rtx4060", "llama.cpp", {"ctx": 16384}),
    "tp": ("qwen3-30b-a3b", "bf16", "rtx4090", "vllm", {"parallel": Parallel(tp=2)}),
    "transformers": ("llama-3-8b", "bf16", "rtx4060", "transformers", {"ctx": 8192}),
    "gateup": ("llama-3-8b", "bf16", "16GB", "gateup", {"ctx": 32768, "batch": 2}),
    "vllm": ("llama-3-8b", "bf16", "24GB", "vllm", {"ctx": 8192, "batch": 64}),
    "uneven": ("llama-3-8b", "bf16", "3x12GB", "vllm", {"ctx": 8192, "batch": 64}),
    "huge": ("deepseek-v3", "q4_k_m", "2xh100", "llama.cpp", {"ctx": 32768}),
    "lora": ("llama-3-8b", "bf16", "24GB", "transformers", {"ctx": 8192, "training": LORA}),
    "full": ("llama-3-8b", "bf16", "8xh100", "transformers", {"batch": 8, "training": FULL}),
    "apple": ("llama-3.1-70b", "q4_k_m", "m4-max-36gb", "llama.cpp", {"ctx": 8192}),
}


@pytest.mark.parametrize("case", CASES)
def test_remedies_fit_and_differ(case: str) -> None:
    name, fmt, device, engine, work = CASES[case]
    s = question(name, fmt, device, engine, **work)  # type: ignore[arg-type]
    assert s.memory().peak > capacity(s)
    found = remedies(s)
    assert 1 <= len(found) <= LIMIT
    for r in found:
        # recomputed from scratch, not from what the search remembered
        assert memory(*r.scenario.resident, r.scenario.workload).peak == r.peak
        device_after = r.scenario.device
        assert device_after is not None
        assert r.peak <= device_after.capacity(r.scenario.workload.engine)
        assert device_after.memory == s.device.memory  # type: ignore[union-attr]
        assert r.loss in LOSSES
        assert r.flags or r.changes[0].startswith("the smaller sibling"), r
    assert len({r.changes for r in found}) == len(found)
    assert len({(r.scenario.fmt, r.scenario.workload, r.scenario.gpu_layers,
                 r.scenario.cpu_moe_layers, r.scenario.device, r.scenario.spec.name)
                for r in found}) == len(found)  # fmt: skip
    order = [LOSSES.index(r.loss) for r in found]
    assert order == sorted(order)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["llama-3-8b", "qwen3-0.6b", "gemma-3-4b", "mixtral-8x7b", "deepseek-v2-lite"]),
    st.sampled_from(["q8_0", "q4_k_m", "f16"]),
    st.integers(100 * 10**6, 40 * 10**9),
    st.integers(1, 65536),
    st.integers(1, 8),
)
def test_whatever_is_asked_what_is_found_fits(
    name: str, fmt: str, nbytes: int, ctx: int, batch: int
) -> None:
    spec = presets.spec(name)
    engine: Engine = "transformers" if fmt == "f16" else "llama.cpp"
    work = Workload(ctx=ctx, batch=batch, engine=engine)
    s = Scenario(spec, fmt, stored_in(spec, fmt), work, Device("any", nbytes))
    if s.memory().peak <= capacity(s):
        return
    found, smallest = find_remedies(s, capacity(s))
    for r in found:
        room = r.scenario.device.capacity(r.scenario.workload.engine)  # type: ignore[union-attr]
        assert memory(*r.scenario.resident, r.scenario.workload).peak == r.peak <= room
    assert len({r.changes for r in found}) == len(found)
    assert smallest <= s.memory().peak
    assert found or smallest > capacity(s)


def by_change(found: tuple[Remedy, ...], start: str) -> Remedy:
    return next(r for r in found if len(r.changes) == 1 and r.changes[0].startswith(start))


def test_the_remedies_of_a_known_case() -> None:
    """Llama-3-8B q4_k_m at 32,768 tokens: 4 GiB of KV cache in f16 beside 4.6 GB of weights."""
    s = question("llama-3-8b", "q4_k_m", "8GB", "llama.cpp", ctx=32768)
    found = remedies(s)
    kv = by_change(found, "KV cache in q8_0")
    assert kv.changes == ("KV cache in q8_0 instead of f16",)
    assert kv.flags == {"llama.cpp": "-c 32768 -ctk q8_0 -ctv q8_0 -fa on -ngl 33"}
    assert kv.loss == "tiny"
    saved = (4 << 30) - (4 << 30) * 17 // 32
    assert s.memory().peak - kv.peak == saved
    layers = next(r for r in found if "layers on the device" in r.changes[0])
    n = layers.scenario.gpu_layers
    assert layers.flags == {"llama.cpp": f"-c 32768 -ngl {n}"}
    assert layers.loss == "none"
    assert layers.host == layers.scenario.host().value > 0
    context = by_change(found, "context")
    ctx = context.scenario.workload.ctx
    assert context.changes == (f"context {ctx:,} instead of 32,768",)
    assert context.flags == {"llama.cpp": f"-c {ctx} -ngl 33"}
    assert context.loss == "capability"
    sibling = by_change(found, "the smaller sibling meta-llama/Llama-3.2")
    assert sibling.flags["llama.cpp"].startswith("-m llama-3.2-3b-Q4_K_M.gguf -c 32768")
    two = by_change(found, "2 devices")
    assert two.flags == {"llama.cpp": "-c 32768 -ngl 33 -sm layer"}
    assert two.loss == "hardware"


def test_slots_and_flash_attention_are_in_the_flags() -> None:
    """llama.cpp's slots share one context; a quantised V cache needs flash attention."""
    s = question("llama-3-8b", "q4_k_m", "8GB", "llama.cpp", ctx=16384, batch=2, flash=False)
    kv = next(r for r in remedies(s) if r.changes[0].startswith("KV cache in q"))
    assert kv.scenario.workload.flash
    assert "-c 32768 -np 2 " in kv.flags["llama.cpp"]
    assert " -fa on" in kv.flags["llama.cpp"]


def test_experts_stay_with_the_host() -> None:
    s = question("qwen3-30b-a3b", "q4_k_m", "rtx4060", "llama.cpp", ctx=16384)
    first = remedies(s)[0]
    n = first.scenario.cpu_moe_layers
    assert first.flags == {"llama.cpp": f"-c 16384 -ngl 49 --n-cpu-moe {n}"}
    assert first.scenario.with_(cpu_moe_layers=n - 1).memory().peak > capacity(s)
    assert all(not (r.scenario.cpu_moe_layers and r.scenario.gpu_layers) for r in remedies(s))


def test_lora_goes_to_qlora_with_checkpointing() -> None:
    s = question("llama-3-8b", "bf16", "24GiB", "transformers", ctx=8192, training=LORA)
    first = remedies(s)[0]
    assert first.loss == "tiny"
    assert first.flags == {
        "llama-factory": "cutoff_len=8192 per_device_train_batch_size=1 finetuning_type=lora "
        "quantization_bit=4 lora_rank=16 lora_target=all optim=adamw_torch "
        "disable_gradient_checkpointing=false"
    }
    training = first.scenario.workload.training
    assert training is not None
    assert (training.method, training.checkpointing) == ("qlora", "layer")
    assert first.scenario.fmt == "nf4"


def test_a_smaller_batch_is_accumulated() -> None:
    s = question("llama-3-8b", "bf16", "8xh100", "transformers", ctx=8192, batch=8, training=FULL)
    r = next(r for r in remedies(s) if any("accumulated" in c for c in r.changes))
    training = r.scenario.workload.training
    assert training is not None
    assert training.accumulation * r.scenario.workload.batch == 8
    assert f"gradient_accumulation_steps={training.accumulation}" in r.flags["llama-factory"]


def test_transformers_can_be_left_for_a_gguf() -> None:
    s = question("llama-3-8b", "bf16", "rtx4060", "transformers", ctx=2048)
    r = next(r for r in remedies(s) if "GGUF in llama.cpp" in r.changes[0])
    fmt = r.scenario.fmt
    assert fmt in {f for f, _, _ in GGUF_LADDER}
    assert r.scenario.workload.engine == "llama.cpp"
    assert r.flags == {"llama.cpp": f"-m MODEL-{fmt.upper()}.gguf -c 2048 -ngl 33"}


def test_transformers_can_be_left_and_layers_with_the_host() -> None:
    s = question("llama-3-70b", "bf16", "rtx4090", "transformers", ctx=4096)
    r = remedies(s)[0]
    n = r.scenario.gpu_layers
    assert n is not None
    assert r.changes == (
        f"a q4_k_m GGUF in llama.cpp instead of transformers, {n} of 81 layers on the device "
        "(output included), the rest with the host",
    )
    assert r.flags == {"llama.cpp": f"-m MODEL-Q4_K_M.gguf -c 4096 -ngl {n}"}
    assert r.scenario.with_(gpu_layers=n + 1).memory().peak > r.scenario.device.capacity(  # type: ignore[union-attr]
        "llama.cpp"
    )
    moe = question("gpt-oss-20b", "bf16", "rtx4070", "transformers", ctx=8192)
    assert "--n-cpu-moe" in remedies(moe)[0].flags["llama.cpp"]


def test_flags_of_vllm_state_the_share_of_memory() -> None:
    s = question("llama-3-8b", "bf16", "24GB", "vllm", ctx=8192, batch=64)
    for r in remedies(s):
        share = re.search(r"--gpu-memory-utilization (\d\.\d\d)$", r.flags["vllm"])
        assert share is not None
        assert float(share[1]) * 24e9 <= capacity(s)
    assert flags_of(s, s.with_(kv_type="f8_e4m3", tp=2)) == {
        "vllm": "--max-model-len 8192 --max-num-seqs 64 --max-num-batched-tokens 512 "
        "--kv-cache-dtype fp8_e4m3 --tensor-parallel-size 2 --gpu-memory-utilization 0.95"
    }


def test_flags_name_another_model() -> None:
    small = presets.spec("llama-3.2-1b")
    s = question("llama-3-8b", "bf16", "24GB", "vllm", ctx=8192)
    assert flags_of(s, s.with_(spec=small))["vllm"].startswith(
        "meta-llama/Llama-3.2-1B --dtype bfloat16 --max-model-len 8192"
    )
    s = question("llama-3-8b", "bf16", "24GB", "transformers", ctx=8192, training=LORA)
    assert flags_of(s, s.with_(spec=small))["llama-factory"].startswith(
        "model_name_or_path=meta-llama/Llama-3.2-1B bf16=true cutoff_len=8192"
    )


def test_flags_of_our_own_execution() -> None:
    s = question("llama-3-8b", "bf16", "24GB", "gateup", ctx=8192, training=LORA)
    after = s.with_(
        execution="tiled", tile=256, training=Training(save="input", checkpointing="layer")
    )
    assert flags_of(s, after)["gateup"] == (
        "--ctx 8192 --batch 1 --exec tiled --tile 256 --save input"
    )
    s = s.with_(engine="transformers")
    assert flags_of(s, after.with_(engine="transformers"))["gateup"] == (
        "--exec tiled --tile 256 --save input"
    )
    assert "gateup" not in flags_of(s, s)


def test_each_axis_saves_more_with_each_option() -> None:
    """Options are ordered by what they save, which the search relies on."""
    for name, fmt, device, engine, work in CASES.values():
        s = question(name, fmt, device, engine, **work)  # type: ignore[arg-type]
        for axis in axes_of(s):
            peaks = [max(o.apply(s).memory().peaks.values()) for o in axis.options]
            falls = all(a >= b for a, b in itertools.pairwise(peaks))
            assert falls or axis.alone, (name, axis.name)
            prices = [(o.loss, o.cost, o.slow) for o in axis.options]
            assert prices == sorted(prices), (name, axis.name)
            assert len({o.label for o in axis.options}) == len(axis.options)


def test_siblings_are_smaller_and_of_one_line() -> None:
    s = question("llama-3.1-70b", "q4_k_m", "8GB", "llama.cpp")
    (axis,) = [a for a in axes_of(s) if a.name == "model"]
    specs = [o.apply(s).spec for o in axis.options]
    assert [x.params for x in specs] == sorted((x.params for x in specs), reverse=True)
    assert all(x.params < s.spec.params and x.vocab_size == 128256 for x in specs)
    assert specs[0].name == "llama-3.1-8b"  # as long a context as the 70B, unlike llama-3-8b
    assert axis.alone
    assert not [a for a in axes_of(question("qwen3-0.6b", "q8_0", "8GB", "llama.cpp"))
                if a.name == "model"]  # fmt: skip


def test_only_axes_that_exist() -> None:
    names = {a.name for a in axes_of(question("llama-3-8b", "q4_k_m", "8GB", "llama.cpp"))}
    assert {"weights", "kv", "ubatch", "layers", "context", "devices", "model"} <= names
    assert not names & {"experts", "execution", "engine"}
    ram = question("llama-3-8b", "q4_k_m", "8GB", "llama.cpp")
    ram = ram.with_(device=Device("ram", 8 * 10**9, kind="cpu"))
    assert not {a.name for a in axes_of(ram)} & {"layers", "devices"}
    vllm = {a.name for a in axes_of(question("llama-3-8b", "bf16", "8GB", "vllm"))}
    assert not vllm & {"layers", "execution"}
    full = question("llama-3-8b", "bf16", "8GB", "transformers", training=FULL)
    assert {"method", "checkpointing"} <= {a.name for a in axes_of(full)}
    assert not {a.name for a in axes_of(full)} & {"qlora", "rank", "targets", "kv"}
    # the last ladder steps and kv types are gone where they are in use already
    low = question("llama-3-8b", "q2_k", "1GB", "llama.cpp", kv_type="q4_0")
    assert not {a.name for a in axes_of(low)} & {"weights", "kv"}


def test_a_kv_type_in_use_is_not_offered_again() -> None:
    s = question("llama-3-8b", "q4_k_m", "8GB", "llama.cpp", kv_type="q8_0", ctx=65536)
    (axis,) = [a for a in axes_of(s) if a.name == "kv"]
    assert [o.label for o in axis.options] == ["KV cache in q4_0 instead of q8_0"]


def test_every_gpu_gives_an_answer() -> None:
    """Llama-3-8B in bf16 at 8,192 tokens: it fits, or something makes it fit, on each card."""
    spec = presets.spec("llama-3-8b")
    for key in ("t4", "rtx3070", "v100-16gb", "jetson-orin-nano-8gb", "m1-8gb", "b200"):
        work = Workload(ctx=8192, engine="transformers")
        s = Scenario(spec, "bf16", stored_in(spec, "bf16"), work, GPUS[key])
        assert s.memory().peak <= capacity(s) or remedies(s), key


def test_no_flash_stays_in_the_flags() -> None:
    s = question("llama-3-8b", "q4_k_m", "8GB", "llama.cpp", ctx=16384, flash=False)
    assert "-fa off" in flags_of(s, s.with_(ctx=512))["llama.cpp"]
    assert "-fa on" in flags_of(s, s.with_(kv_type="q8_0", flash=True))["llama.cpp"]
