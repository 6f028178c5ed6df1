"""Plans whose phases are sums of their items, and what must grow or shrink with what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateup.account.engines import llamacpp_compute_buffer
from gateup.account.figure import worst
from gateup.account.kv import kv_nbytes
from gateup.account.lora import CONVERTED, LINEAR_ROUTERS
from gateup.account.memory import LLAMACPP_WINDOWS, MemoryPlan, memory
from gateup.account.parallel import faults
from gateup.account.training import FP32_ROUTERS
from gateup.account.workload import LoRA, Parallel, Training, Workload
from gateup.model import presets
from gateup.model.families import FAMILIES, build_spec
from gateup.model.quant import mix
from gateup.model.quant.formats import stored_as
from gateup.model.spec import ModelSpec


def plan_for(name: str, workload: Workload, fmt: str = "bf16") -> MemoryPlan:
    spec = presets.spec(name)
    return memory(spec, mix.stored(spec, fmt), workload)


def group(plan: MemoryPlan, name: str, phase: str) -> int:
    return sum(i.nbytes for i in plan.alive(phase) if i.group == name)


WORKLOADS = st.builds(
    Workload,
    ctx=st.sampled_from([1, 100, 256, 4096, 32768]),
    batch=st.sampled_from([1, 3, 8]),
    compute_dtype=st.sampled_from(["bf16", "f32"]),
    kv_type=st.sampled_from(["f16", "q8_0"]),
    engine=st.sampled_from(["transformers", "llama.cpp", "vllm", "gateup"]),
    execution=st.sampled_from(["eager", "fused", "tiled"]),
    tile=st.sampled_from([1, 64, 1024]),
    last_logits=st.booleans(),
    flash=st.booleans(),
    parallel=st.sampled_from(
        [
            Parallel(),
            Parallel(tp=2),
            Parallel(pp=3),
            Parallel(fsdp=4),
            Parallel(tp=2, pp=2, fsdp=2),
        ]
    ),
)
TRAININGS = st.builds(
    Training,
    method=st.sampled_from(["full", "lora"]),
    lora=st.sampled_from([LoRA(4), LoRA(16, targets=("attention",)), LoRA(8, dtype="bf16")]),
    optimizer=st.sampled_from(["adamw", "adamw8bit", "sgd"]),
    save=st.sampled_from(["hf", "all", "gate_up", "input"]),
    checkpointing=st.sampled_from(["none", "layer"]),
    autocast=st.booleans(),
    accumulation=st.sampled_from([1, 4]),
)
MODELS = (
    "llama-3-8b",
    "gemma-2-2b",
    "qwen3-30b-a3b",
    "phi-3-mini",
    "gpt-oss-20b",
    "deepseek-v2-lite",
)
SPECS = {name: presets.spec(name) for name in MODELS}
STORED = {name: stored_as(spec.rows, "bf16") for name, spec in SPECS.items()}


def run(name: str, workload: Workload) -> MemoryPlan:
    return memory(SPECS[name], STORED[name], workload)


def with_training(workload: Workload, training: Training) -> Workload:
    return replace(workload, engine="transformers", training=training)


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(MODELS), workload=WORKLOADS, training=st.none() | TRAININGS)
def test_phases_are_the_sums_of_their_items(
    name: str, workload: Workload, training: Training | None
) -> None:
    plan = run(name, workload if training is None else with_training(workload, training))
    assert set(plan.peaks) >= {p for i in plan.items for p in i.phases}
    for phase, total in plan.peaks.items():
        assert total == sum(i.nbytes for i in plan.alive(phase))
        assert total == sum(plan.by_group(phase).values())
    assert plan.peak == max(plan.peaks.values()) == plan.peaks[plan.peak_phase]
    assert plan.kind == worst(*(i.figure.kind for i in plan.alive(plan.peak_phase)))
    for item in plan.items:
        assert item.nbytes > 0
        assert isinstance(item.figure.value, int)
        assert item.figure.unit == "B"
        assert item.figure.formula
        assert item.figure.numbers
        assert item.figure.source


def _value(text: str) -> int:
    """A figure's numbers, computed: only sums and products of whole numbers, and min."""
    allowed = set("0123456789+·()*/, min")
    assert set(text) <= allowed, text
    return int(eval(text.replace("·", "*")))


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(MODELS), workload=WORKLOADS, training=st.none() | TRAININGS)
def test_numbers_compute_to_the_value(
    name: str, workload: Workload, training: Training | None
) -> None:
    """What is printed beside a formula is the sum that was made."""
    workload = replace(workload, engine="transformers", kv_type="f16", parallel=Parallel())
    plan = run(name, workload if training is None else with_training(workload, training))
    for item in plan.items:
        assert _value(item.figure.numbers) == item.figure.value, item.label


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(MODELS),
    workload=WORKLOADS,
    training=st.none() | TRAININGS,
    grow=st.sampled_from(["ctx", "batch", "ubatch"]),
)
def test_more_tokens_never_need_less(
    name: str, workload: Workload, training: Training | None, grow: str
) -> None:
    if training is not None:
        workload = with_training(workload, training)
    bigger = replace(workload, **{grow: 2 * getattr(workload, grow)})
    small, large = run(name, workload), run(name, bigger)
    assert small.peak <= large.peak
    if small.stage == large.stage:  # else another stage of the pipeline is now the fullest
        for phase in small.peaks:
            assert small.peaks[phase] <= large.peaks[phase]


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(MODELS),
    workload=WORKLOADS,
    split=st.sampled_from(["tp", "pp", "fsdp", "ep"]),
)
def test_more_ranks_never_hold_more_weights(name: str, workload: Workload, split: str) -> None:
    one = replace(workload, parallel=Parallel())
    two = replace(workload, parallel=Parallel(**{split: 2}))
    if faults(SPECS[name], STORED[name], two.parallel):
        return
    if split == "ep" and not any(r.experts for r in SPECS[name].rows):
        return
    for phase in ("load", "kv"):
        a = run(name, one)
        b = run(name, two)
        if phase == "load":
            assert b.peaks["load"] <= a.peaks["load"]
        else:
            last = list(a.peaks)[-1]
            assert group(b, "kv", last) <= group(a, "kv", last)


@settings(deadline=None, max_examples=40)
@given(name=st.sampled_from(MODELS), workload=WORKLOADS, training=TRAININGS)
def test_checkpointing_and_lean_modes_save(
    name: str, workload: Workload, training: Training
) -> None:
    def peak(**changes: Any) -> int:
        one = replace(workload, parallel=Parallel())
        return run(name, with_training(one, replace(training, **changes))).peaks["logits"]

    assert peak(checkpointing="layer") <= peak(checkpointing="none")
    by_mode = [peak(save=s, checkpointing="none") for s in ("hf", "all", "gate_up")]
    assert by_mode == sorted(by_mode, reverse=True)
    assert peak(optimizer="sgd") <= peak(optimizer="adamw8bit") <= peak(optimizer="adamw")


def test_weights_are_the_stored_bytes() -> None:
    plan = plan_for("llama-3-8b", Workload(engine="llama.cpp", ctx=8192), "q4_k_m")
    assert plan.peaks["load"] == 4_912_898_048
    assert all(i.figure.kind == "exact" for i in plan.alive("load"))


def test_kv_is_exact() -> None:
    plan = plan_for("llama-3-8b", Workload(ctx=8192, batch=2))
    assert group(plan, "kv", "decode") == 2 * 32 * 8 * 128 * 8192 * 2 * 2
    assert next(i for i in plan.items if i.group == "kv").figure.kind == "exact"


def test_llamacpp_rounds_the_context_up() -> None:
    small = plan_for("llama-3-8b", Workload(engine="llama.cpp", ctx=1000), "q4_k_m")
    assert group(small, "kv", "compute") == 2 * 32 * 8 * 128 * 1024 * 2


def test_llamacpp_keeps_window_and_ubatch_cells() -> None:
    """gemma-2-2b: 13 of 26 layers slide over 4096; llama.cpp gives them 4096 + 512 cells."""
    spec = presets.spec("gemma-2-2b")
    plan = plan_for("gemma-2-2b", Workload(engine="llama.cpp", ctx=8192), "bf16")
    cell = 2 * 4 * 256 * 2
    assert group(plan, "kv", "compute") == 13 * cell * 8192 + 13 * cell * 4608
    other = plan_for("gemma-2-2b", Workload(ctx=8192))
    assert group(other, "kv", "decode") == kv_nbytes(spec, 8192, "f16").value


def test_llamacpp_caches_all_of_mistrals_window() -> None:
    plan = plan_for("mistral-7b-v0.1", Workload(engine="llama.cpp", ctx=32768), "bf16")
    assert group(plan, "kv", "compute") == 2 * 32 * 8 * 128 * 32768 * 2


def test_mla_is_latent_except_in_transformers() -> None:
    w = Workload(ctx=1024)
    latent = 61 * (512 + 64) * 1024 * 2
    for engine in ("vllm", "gateup", "llama.cpp"):
        plan = plan_for("deepseek-v3", replace(w, engine=engine))
        assert group(plan, "kv", list(plan.peaks)[-1]) == latent
    expanded = plan_for("deepseek-v3", w)
    assert group(expanded, "kv", "decode") == 61 * 128 * (192 + 128) * 1024 * 2


def test_mla_latent_is_whole_on_every_rank() -> None:
    one = plan_for("deepseek-v3", Workload(ctx=1024, engine="vllm"))
    eight = plan_for("deepseek-v3", Workload(ctx=1024, engine="vllm", parallel=Parallel(tp=8)))
    assert group(one, "kv", "decode") == group(eight, "kv", "decode")


def test_compute_buffer_is_the_engines() -> None:
    spec = presets.spec("llama-3-8b")
    w = Workload(engine="llama.cpp", ctx=8192)
    plan = memory(spec, stored_as(spec.rows, "f16"), w)
    assert plan.by_group("compute")["buffers"] == llamacpp_compute_buffer(spec, w).value
    assert list(plan.peaks) == ["load", "compute"]


def test_prefill_peak_by_hand() -> None:
    """Llama-3-8B, bf16, 8192 tokens: the MLP's three widths and four hidden states."""
    plan = plan_for("llama-3-8b", Workload(ctx=8192))
    assert plan.peak_phase == "mlp"
    kv = 2 * 32 * 8 * 128 * 8192 * 2
    states = 4 * 8192 * 4096 * 2 + 8192 * (2 * 128 * 2 + 8)
    assert plan.peak == 2 * 8_030_261_248 + kv + states + 3 * 14336 * 8192 * 2


def test_logits_of_every_position_can_be_the_peak() -> None:
    plan = plan_for("llama-3-8b", Workload(ctx=8192, last_logits=False))
    assert plan.peak_phase == "logits"
    assert group(plan, "logits", "logits") > 2 * group(plan, "mlp", "mlp")


def test_tied_weights_lie_on_both_ends_of_a_pipeline() -> None:
    spec = presets.spec("qwen3-0.6b")
    stored = stored_as(spec.rows, "bf16")
    plan = memory(spec, stored, Workload(parallel=Parallel(pp=2)))
    layers = sum(r.params for r in spec.rows if r.layer is not None)
    assert plan.stage == 1
    assert plan.peaks["load"] == 2 * (layers // 2 + 151_936 * 1024 + 1024)


def test_fsdp_gathers_one_unit() -> None:
    spec = presets.spec("llama-3-8b")
    stored = stored_as(spec.rows, "bf16")
    plan = memory(spec, stored, Workload(ctx=1024, parallel=Parallel(fsdp=8)))
    gathered = next(i for i in plan.items if i.label.startswith("FSDP"))
    assert gathered.nbytes == 2 * (2 * 128_256 * 4096 + 4096)
    assert "load" not in gathered.phases
    assert plan.peaks["load"] == 2 * spec.params // 8


def test_nf4_unpacks_its_largest_matrix() -> None:
    plan = plan_for("llama-3-8b", Workload(ctx=128), "nf4")
    item = next(i for i in plan.items if "dequantised" in i.label)
    assert item.nbytes == 4096 * 14336 * 2


def test_layers_without_attention_or_mlp() -> None:
    spec: ModelSpec = build_spec(
        {
            "architectures": ["DeciLMForCausalLM"],
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "vocab_size": 100,
            "block_configs": [
                {
                    "attention": {"n_heads_in_group": None, "no_op": True},
                    "ffn": {"ffn_mult": 2.0},
                },
                {"attention": {"n_heads_in_group": 2}, "ffn": {"no_op": True}},
            ],
        },
        where="config",
        name="deci",
    )
    plan = memory(spec, stored_as(spec.rows, "bf16"), Workload(ctx=64))
    assert group(plan, "kv", "decode") == 2 * 2 * 16 * 64 * 2


def test_tables_by_family_name_families_there_are() -> None:
    tables = (LLAMACPP_WINDOWS, CONVERTED, LINEAR_ROUTERS, FP32_ROUTERS)
    assert {name for table in tables for name in table} <= FAMILIES.keys()
