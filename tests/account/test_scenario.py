"""What lies on the device and what with the host; how a scenario changes and spreads."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from gateup.account.kv import kv_nbytes
from gateup.account.machine import GIB, Device, parse_device
from gateup.account.memory import memory
from gateup.account.scenario import Scenario, stored_in
from gateup.account.workload import Engine, LoRA, Parallel, Training, Workload
from gateup.errors import UsageError
from gateup.model import presets
from gateup.model.quant.formats import StoredTensor

CARD = Device("card", 24 * GIB)


def scenario(name: str = "llama-3-8b", fmt: str = "q4_k_m", **changes: object) -> Scenario:
    spec = presets.spec(name)
    engine: Engine = "llama.cpp" if fmt.startswith(("q", "i")) else "vllm"
    s = Scenario(spec, fmt, stored_in(spec, fmt), Workload(engine=engine), CARD)
    return s.with_(**changes) if changes else s


def test_llama_cpp_leaves_the_embedding_with_the_host() -> None:
    """q4_k_m of Llama-3-8B: 4,912,898,048 bytes, of which token_embd's 128256·4096·144/256."""
    s = scenario()
    embedding = 128256 * 4096 * 144 // 256
    weights = sum(i.nbytes for i in s.memory().items if i.group == "weights")
    assert sum(t.nbytes for t in s.stored) == 4_912_898_048
    assert weights == 4_912_898_048 - embedding
    assert (s.host().value, s.host().kind) == (embedding, "exact")


def test_without_a_card_all_is_one_memory() -> None:
    for device in (None, Device("ram", 64 * GIB, kind="cpu"), parse_device("m4-max-64gb")):
        s = scenario(device=device)
        weights = sum(i.nbytes for i in s.memory().items if i.group == "weights")
        assert (weights, s.host().value) == (4_912_898_048, 0)


def test_a_tied_output_is_a_second_copy_on_the_device() -> None:
    s = scenario("qwen3-0.6b")
    embedding = next(t for t in s.stored if t.row and t.row.part == "embedding")
    assert s.spec.tie_word_embeddings
    weights = sum(i.nbytes for i in s.memory().items if i.group == "weights")
    assert weights == sum(t.nbytes for t in s.stored)
    assert s.host().value == embedding.nbytes
    spec, _ = s.resident
    assert [r.role for r in spec.rows if r.part in ("embedding", "head")] == ["lm_head"]


@pytest.mark.parametrize("layers", [0, 1, 2, 16, 32, 33, 99])
def test_gpu_layers(layers: int) -> None:
    """-ngl N: the output and the last N - 1 layers, weights and KV cache, are on the device."""
    s = scenario(gpu_layers=layers, ctx=8192)
    n = min(layers, 33)
    on = {t.row.layer for t in s.stored if t.row and t.row.layer is not None and s.on_device(t.row)}
    assert on == set(range(33 - n, 32))
    head = next(r for r in s.spec.rows if r.part == "head")
    assert s.on_device(head) == (n > 0)
    kv = kv_nbytes(s.spec, 8192).value
    items = {i.group: i.nbytes for i in s.memory().items if i.group == "kv"}
    assert items.get("kv", 0) == kv * max(n - 1, 0) // 32
    total = sum(i.nbytes for i in s.memory().items if i.group in ("weights", "kv"))
    assert total + s.host().value == 4_912_898_048 + kv  # nothing is lost or counted twice


def test_cpu_moe() -> None:
    """--n-cpu-moe N: the first N layers' experts are with the host, their attention is not."""
    whole = scenario("qwen3-30b-a3b")
    s = scenario("qwen3-30b-a3b", cpu_moe_layers=20)
    experts = sum(
        t.nbytes
        for t in s.stored
        if t.row and t.row.experts and t.row.layer is not None and t.row.layer < 20
    )
    assert experts > 0
    off = {r.layer for r in s.spec.rows if r.layer is not None and not s.on_device(r)}
    assert off == set(range(20))
    assert all(whole.on_device(r) for r in whole.spec.rows if r.layer is not None)
    assert whole.memory().peak - s.memory().peak == experts
    assert int(s.host().value) - int(whole.host().value) == experts
    routers = [r for r in s.spec.rows if r.role.endswith("router") and r.layer == 0]
    assert routers
    assert all(s.on_device(r) for r in routers)


def test_offload_beside_pipeline_stages() -> None:
    """Two cards share the layers that are on the device, not those with the host."""
    s = scenario(gpu_layers=17, device=replace(CARD, count=2), pp=2)
    one = scenario(gpu_layers=17)
    spec, stored = s.resident
    assert [x.index for x in spec.layers] == list(range(16))
    assert {t.row.layer for t in stored if t.row} == {*range(16), None}
    weights = [sum(i.nbytes for i in x.memory().items if i.group == "weights") for x in (one, s)]
    assert weights[0] / 2 < weights[1] < weights[0] * 0.65


@pytest.mark.parametrize(
    ("name", "fmt", "changes"),
    [
        ("llama-3-8b", "q4_k_m", {}),
        ("llama-3-8b", "q4_k_m", {"gpu_layers": 12}),
        ("qwen3-30b-a3b", "q4_k_m", {"cpu_moe_layers": 7, "gpu_layers": 40}),
        ("llama-3-8b", "bf16", {}),
        ("llama-3-8b", "bf16", {"tp": 2}),
        ("llama-3-8b", "bf16", {"tp": 16}),
        ("llama-3-8b", "awq:128", {"tp": 4}),
        ("llama-3-8b", "bf16", {"pp": 3}),
        ("qwen3-30b-a3b", "bf16", {"tp": 4, "ep": 4}),
        ("deepseek-v3", "fp8:128", {"tp": 8}),
        ("gpt2", "bf16", {"tp": 2}),
    ],
)
def test_condensed_tensors_make_the_same_plan(
    name: str, fmt: str, changes: dict[str, object]
) -> None:
    """The shortcut for speed changes no byte."""
    s = scenario(name, fmt, **changes)
    assert memory(*s.resident, s.workload).peaks == s.memory().peaks


def test_with_changes_what_it_says() -> None:
    s = scenario()
    t = s.with_(ctx=100, tp=2, kv_type="q8_0", gpu_layers=3)
    assert (t.workload.ctx, t.workload.parallel.tp, t.workload.kv_type) == (100, 2, "q8_0")
    assert t.gpu_layers == 3
    assert (s.workload.ctx, s.gpu_layers) == (4096, None)  # the first is as it was
    assert t.stored is s.stored
    u = s.with_(fmt="q8_0")
    assert u.stored == stored_in(s.spec, "q8_0")
    v = s.with_(spec=presets.spec("llama-3.2-1b"))
    assert v.fmt == "q4_k_m"
    assert v.stored == stored_in(presets.spec("llama-3.2-1b"), "q4_k_m")
    with pytest.raises(TypeError):
        s.with_(no_such_field=1)


def test_a_sibling_of_what_lies_on_disk() -> None:
    """As on disk has no format to give; the type of the MLP's matrices names the nearest."""
    small = presets.spec("llama-3.2-1b")
    s = replace(scenario(), fmt=None)
    assert s.with_(spec=small).fmt == "q4_k_m"
    assert replace(scenario(fmt="q8_0"), fmt=None).with_(spec=small).fmt == "q8_0"
    assert replace(scenario(fmt="bf16"), fmt=None).with_(spec=small).fmt == "bf16"
    odd = tuple(replace(t, type="f64") for t in s.stored)
    assert replace(s, fmt=None, stored=odd).with_(spec=small).fmt == "gguf:bf16"
    none: tuple[StoredTensor, ...] = ()
    assert replace(s, fmt=None, stored=none).with_(spec=small).fmt == "gguf:bf16"


def test_spread_over_cards() -> None:
    two = replace(CARD, count=2)
    s = scenario(device=two).spread()
    assert (s.workload.parallel, s.notes) == (
        Parallel(pp=2),
        ("2x card: pp 2, llama.cpp splits by layers",),
    )
    s = scenario(fmt="bf16", device=two).spread()
    assert (s.workload.parallel, s.notes) == (Parallel(tp=2), ("2x card: tp 2, tensor parallel",))
    s = scenario(fmt="bf16", device=two, engine="transformers", training=Training()).spread()
    assert s.workload.parallel == Parallel(fsdp=2)
    assert s.spread() == s


def test_spread_over_three_cards_goes_by_layers() -> None:
    s = scenario(fmt="bf16", device=replace(CARD, count=3)).spread()
    assert s.workload.parallel == Parallel(pp=3)
    assert "32 attention heads do not divide by tp 3" in s.notes[0]


def test_a_split_that_was_given_stands() -> None:
    s = scenario(fmt="bf16", device=replace(CARD, count=4), tp=2).spread()
    idle = "the split takes 2 of 4x card; the others have nothing to do"
    assert (s.workload.parallel, s.notes, s.spread().notes) == (Parallel(tp=2), (idle,), (idle,))
    s = scenario(fmt="bf16", tp=2).spread()  # one card was named: two of it are meant
    assert s.device is not None
    assert (s.device.count, s.notes) == (2, ("the split takes 2 of card",))
    with pytest.raises(UsageError) as caught:
        scenario(fmt="bf16", device=replace(CARD, count=2), tp=4).spread()
    assert str(caught.value) == (
        "the split takes 4 devices and --device names 2x card\n  expected: tp·pp·fsdp up to 2"
    )


def test_an_illegal_split_is_refused() -> None:
    with pytest.raises(UsageError, match="tensor-parallel"):
        scenario(fmt="bf16", tp=3).memory()


def test_memory_grows_with_context_batch_and_layers() -> None:
    for s in (scenario(), scenario("qwen3-30b-a3b"), scenario(fmt="bf16"), scenario("gemma-3-4b")):
        for name, values in (("ctx", (1, 64, 4096, 65536)), ("batch", (1, 2, 16))):
            peaks = [s.with_(**{name: v}).memory().peak for v in values]
            assert all(a <= b for a, b in itertools.pairwise(peaks))
    layers = [scenario(gpu_layers=n).memory().peak for n in (2, 10, 20, 33)]
    assert all(a < b for a, b in itertools.pairwise(layers))


def test_training_memory_is_computed_whole() -> None:
    s = scenario(fmt="bf16", engine="transformers", training=Training(lora=LoRA(16)))
    assert memory(s.spec, s.stored, s.workload).peaks == s.memory().peaks


@pytest.mark.parametrize(
    ("types", "engine", "fmt"),
    [
        (("q4_k",), "llama.cpp", "q4_k_m"),
        (("f16",), "llama.cpp", "gguf:f16"),
        (("i32",), "transformers", "awq:64"),
        (("f32", "q6_k", "q6_k"), "llama.cpp", "q6_k"),
        (("q8_k",), "llama.cpp", "gguf:bf16"),
    ],
)
def test_another_model_takes_the_format_on_disk(
    types: tuple[str, ...], engine: str, fmt: str
) -> None:
    """Types that only files have (i32 words, q4_k blocks) stand for the format they make up."""
    s = scenario(fmt="bf16", engine=engine)
    mlp = [t for t in s.stored if t.row is not None and t.row.part == "mlp"]
    odd = tuple(replace(t, type=types[i % len(types)]) for i, t in enumerate(mlp))
    quant = {"quant_method": "awq", "bits": 4, "group_size": 64}
    spec = replace(s.spec, config={**s.spec.config, "quantization_config": quant})
    s = replace(s, spec=spec, fmt=None, stored=odd)
    assert s.with_(spec=presets.spec("llama-3.2-1b")).fmt == fmt
