"""Every remedy is recomputed: it fits, it is unlike the others, and its flags say what it does."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateup.account.axes import GGUF_LADDER
from gateup.account.machine import GPUS, Device, parse_device
from gateup.account.memory import memory
from gateup.account.remedies import LIMIT, Remedy, find_remedies, flags_of
from gateup.account.report.tables import prices
from gateup.account.scenario import Scenario, stored_in
from gateup.account.search import LOSSES
from gateup.account.training_axes import axes_of
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
        assert len(r.losses) == len(r.changes)
        assert max(r.losses, key=LOSSES.index) == r.loss
        assert r.flags or r.changes[0].startswith("the smaller sibling"), r
    assert len({r.changes for r in found}) == len(found)
    assert len({(r.scenario.fmt, r.scenario.workload, r.scenario.gpu_layers,
                 r.scenario.cpu_moe_layers, r.scenario.device, r.scenario.spec.name)
                for r in found}) == len(found)  # fmt: skip
    # much of the model on the host ranks with the loss of some quality
    order = [max(LOSSES.index(r.loss), 2 if mostly_slow(r) else 0) for r in found]
    assert order == sorted(order)


def mostly_slow(r: Remedy) -> bool:
    """A tenth of the layers or more runs on the host."""
    layers = r.scenario.spec.num_layers + 1
    left = r.scenario.gpu_layers
    return left is not None and layers - left >= layers / 10


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
    layers = by_change(found, "28 of 33 layers on the device")
    n = layers.scenario.gpu_layers
    assert layers.changes[0].endswith("; slower: 5 run on the host")
    assert found.index(layers) > found.index(kv)  # a trace of quality before an eighth on the host
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


FACTORY = "per_device_train_batch_size=1 finetuning_type=lora lora_rank=16 lora_target=all "
TAIL = "optim=adamw_torch disable_gradient_checkpointing=false"


def test_lora_takes_what_is_free_first() -> None:
    """Checkpointing and Liger's loss lose nothing; no context is cut where they are enough."""
    s = question("llama-3-8b", "bf16", "24GiB", "transformers", ctx=8192, training=LORA)
    found = remedies(s)
    assert found[0].loss == "none"
    assert found[0].flags == {
        "llama-factory": f"bf16=true cutoff_len=8192 {FACTORY}{TAIL} enable_liger_kernel=true"
    }
    assert not any("context" in c or "rank" in c for r in found for c in r.changes)
    qlora = next(r for r in found if r.changes[0].startswith("QLoRA"))
    assert qlora.flags == {
        "llama-factory": "quantization_bit=4 double_quantization=false bf16=true cutoff_len=8192 "
        f"{FACTORY}{TAIL}"
    }
    assert (qlora.scenario.fmt, qlora.loss) == ("nf4", "tiny")


@pytest.mark.parametrize("device", ["16GB", "6GB", "4GB"])
def test_a_shorter_context_keeps_checkpointing(device: str) -> None:
    s = question("llama-3-8b", "bf16", device, "transformers", ctx=8192, training=LORA)
    found = remedies(s)
    assert found
    for r in found:
        training = r.scenario.workload.training
        assert training is not None
        assert (training.checkpointing, training.loss) == ("layer", "chunked")
        assert r.changes[0].startswith("checkpointing")
        assert "enable_liger_kernel=true" in r.flags.get(
            "llama-factory", "enable_liger_kernel=true"
        )


def test_several_cards_are_sharded_as_the_peak_assumes() -> None:
    """ZeRO-3 refuses quantised weights and pure_bf16; those go through accelerate's FSDP."""
    lora = question("llama-3-8b", "bf16", "24GB", "transformers", training=LORA)
    eight = flags_of(lora, lora.with_(fsdp=8))
    assert eight["llama-factory launch"] == (
        "FORCE_TORCHRUN=1 NPROC_PER_NODE=8 llamafactory-cli train RUN.yaml"
    )
    zero3 = "deepspeed=examples/deepspeed/ds_z3_config.json bf16=true cutoff_len=4096 "
    assert eight["llama-factory"].startswith(zero3)
    assert "llama-factory launch" not in flags_of(lora, lora)
    # more cards than a machine has are started machine by machine
    assert flags_of(lora, lora.with_(fsdp=24))["llama-factory launch"] == (
        "FORCE_TORCHRUN=1 NNODES=3 NODE_RANK=RANK MASTER_ADDR=HOST MASTER_PORT=29500 "
        "NPROC_PER_NODE=8 llamafactory-cli train RUN.yaml"
    )
    wide = flags_of(lora, lora.with_(fsdp=64, fmt="nf4", training=Training("qlora")))
    assert (
        "--num_processes 64 --num_machines 8 --machine_rank RANK --main_process_ip HOST "
        "--main_process_port 29500 --mixed_precision bf16 "
    ) in wide["llama-factory launch"]
    qlora = question(
        "llama-3-8b", "nf4:double", "24GB", "transformers", training=Training("qlora"), ctx=2048
    )
    fsdp = "accelerate launch --config_file examples/accelerate/fsdp_config.yaml --num_processes 2 "
    two = flags_of(qlora, qlora.with_(fsdp=2))
    assert two["llama-factory launch"] == fsdp + "--mixed_precision bf16 src/train.py RUN.yaml"
    assert two["llama-factory"].startswith(
        "quantization_bit=4 double_quantization=true bf16=true cutoff_len=2048 "
    )
    full = question("llama-3-8b", "bf16", "24GB", "transformers", training=FULL)
    two = flags_of(full, full.with_(fsdp=2))
    assert two["llama-factory launch"] == fsdp + "--mixed_precision no src/train.py RUN.yaml"
    assert two["llama-factory"].startswith("pure_bf16=true ")
    int8 = question("llama-3-8b", "int8", "24GB", "transformers", training=Training("qlora"))
    assert "quantization_bit=8" in flags_of(int8, int8)["llama-factory"]
    for other in (int8.with_(fsdp=2), lora.with_(tp=2), full.with_(fmt="f16")):
        assert "llama-factory" not in flags_of(other, other)


@pytest.mark.parametrize(
    ("fmt", "training", "flag"),
    [
        ("bf16", LORA, "bf16=true"),
        ("nf4", Training("qlora"), "bf16=true"),
        ("bf16", FULL, "pure_bf16=true"),
        ("f32", Training("full", autocast=True), "bf16=true"),
        ("f32", FULL, "bf16=false"),
    ],
)
def test_the_precision_is_always_said(fmt: str, training: Training, flag: str) -> None:
    s = question("llama-3-8b", fmt, "24GB", "transformers", training=training)
    assert flag in flags_of(s, s)["llama-factory"].split()


def test_quantised_twice_is_a_step_of_its_own() -> None:
    s = question("llama-3-8b", "nf4", "6GB", "transformers", training=Training("qlora"), ctx=512)
    (axis,) = [a for a in axes_of(s) if a.name == "qlora"]
    assert [o.apply(s).fmt for o in axis.options] == ["nf4:double"]
    assert not [a for a in axes_of(s.with_(fmt="nf4:double")) if a.name == "qlora"]


def test_weights_and_cache_are_quantised_together() -> None:
    """Qwen3-8B at 32,768 tokens on 8 GB: 8.2 GB in q8_0 and 4.8 GB of cache."""
    s = question("qwen3-8b", "q8_0", "8GB", "llama.cpp", ctx=32768)
    assert remedies(s)[0].flags == {
        "llama.cpp": "-m MODEL-Q4_K_M.gguf -c 32768 -ctk q8_0 -ctv q8_0 -fa on -ngl 37"
    }
    s = question("qwen3-8b", "bf16", "8GB", "transformers", ctx=32768)
    assert remedies(s)[0].changes == (
        "a q4_k_m GGUF in llama.cpp instead of transformers, KV cache in q8_0",
    )
    assert remedies(s)[0].flags == {
        "llama.cpp": "-m MODEL-Q4_K_M.gguf -c 32768 -ctk q8_0 -ctv q8_0 -fa on -ngl 37"
    }


def test_awq_names_the_checkpoint_it_takes() -> None:
    s = question("llama-3-8b", "bf16", "12GB", "vllm", ctx=8192, batch=8, ubatch=2048)
    awq = next(r for r in remedies(s) if "awq" in r.changes[0])
    assert awq.changes[0].endswith("(takes a checkpoint quantised so: MODEL-AWQ)")
    assert awq.flags["vllm"].startswith("MODEL-AWQ --max-model-len")
    small = s.with_(fmt="awq:128", spec=presets.spec("llama-3.2-1b"))
    assert flags_of(s, small)["vllm"].startswith("meta-llama/Llama-3.2-1B-AWQ --max-model-len")


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
        "(output included); slower: "
        f"{81 - n} run on the host",
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
    tiled = s.with_(engine="transformers", execution="tiled", tile=256)
    assert "--exec tiled" not in flags_of(tiled, tiled.with_(batch=2)).get("gateup", "")
    assert "gateup" not in flags_of(s, s)


@pytest.mark.parametrize(
    ("name", "device", "ctx"),
    [("llama-3-8b", "8GB", 8192), ("llama-3-8b", "24GB", 4096), ("llama-3.1-70b", "80GB", 4096)],
)
def test_full_training_is_given_up_or_bought(name: str, device: str, ctx: int) -> None:
    """Fewer devices for LoRA or QLoRA, more for what was asked; the cheaper in kind first."""
    s = question(name, "bf16", device, "transformers", ctx=ctx, training=FULL)
    found = remedies(s)
    assert 2 <= len(found) <= LIMIT

    def first(method: str) -> Remedy:
        return next(
            r
            for r in found
            if r.scenario.spec is s.spec
            and r.loss != "capability"
            and (r.scenario.workload.training.method == "full") == (method == "full")  # type: ignore[union-attr]
        )

    less, whole = first("lora"), first("full")
    assert found.index(less) < found.index(whole)
    count = [r.scenario.device.count for r in (less, whole)]  # type: ignore[union-attr]
    assert count[0] < count[1]
    assert all(
        r.scenario.workload.parallel.fsdp == n for r, n in zip((less, whole), count, strict=True)
    )
    for r in found:
        assert memory(*r.scenario.resident, r.scenario.workload).peak == r.peak <= capacity(s)
    assert len({r.changes for r in found}) == len(found)
    one = [r for r in found if r.scenario.device.count == 1 and r.scenario.spec is s.spec]  # type: ignore[union-attr]
    assert one, "something fits on the one device: QLoRA, with a shorter context if need be"


def test_every_price_is_named() -> None:
    """Devices do not hide that full training became QLoRA."""
    s = question(
        "llama-3-8b", "bf16", "8GB", "transformers", ctx=8192,
        training=Training("full", checkpointing="layer"),
    )  # fmt: skip
    both = next(
        r for r in remedies(s)
        if any("QLoRA" in c for c in r.changes) and any("devices" in c for c in r.changes)
    )  # fmt: skip
    assert both.loss == "hardware"
    assert ("some", ("QLoRA instead of full training",)) in both.prices
    assert ("hardware", ("8 devices of 8 GB instead of 1",)) in both.prices
    assert [p for p, _ in both.prices] == ["some", "hardware"]
    words = "; ".join(prices(both))
    assert "some quality is lost: QLoRA instead of full training; " in words
    assert "it takes more hardware: 8 devices" in words
    free = question("llama-3-8b", "bf16", "24GiB", "transformers", ctx=8192, training=LORA)
    assert prices(remedies(free)[0]) == ["no quality is lost"]


def test_llama_factory_gets_the_parts_it_can_do() -> None:
    """Tiles are gateup's own; QLoRA, Liger, checkpointing and the cards are LLaMA-Factory's too."""
    training = Training("qlora", checkpointing="layer", loss="chunked", save="all")
    s = question("llama-3-8b", "nf4", "8GB", "transformers", ctx=8192, training=training)
    plain, tiled = s.with_(fsdp=8), s.with_(fsdp=8, execution="tiled", tile=1024)
    lacks = "llama-factory lacks"
    theirs, ours = flags_of(s, plain), flags_of(s, tiled)
    assert lacks not in theirs
    assert ours[lacks] == (
        "MLP in tiles of 1,024 tokens (gateup's own, gateup.patch(model, "
        "options=MLPOptions(tile=1024))); the peak counts on it"
    )
    for name in ("llama-factory", "llama-factory launch"):
        assert ours[name] == theirs[name]
    keys = (
        "quantization_bit=4",
        "enable_liger_kernel=true",
        "disable_gradient_checkpointing=false",
    )
    assert set(keys) <= set(ours["llama-factory"].split())
    assert "--num_processes 8 " in ours["llama-factory launch"]
    kept = flags_of(s, s.with_(training=Training("qlora", save="input")))
    assert "enable_liger_kernel" not in kept["llama-factory"]
    assert kept[lacks].startswith("an MLP that keeps x only (gateup's own")
    assert 'MLPOptions(save="input")' in kept[lacks]
    assert flags_of(s, tiled.with_(fsdp=1, tp=2)) == {"gateup": "--exec tiled --tile 1024"}


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
