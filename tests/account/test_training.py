"""A training step: known cases, gradients, optimizers, adapters, ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gateup.account.memory import MemoryPlan, memory
from gateup.account.workload import LoRA, Parallel, Training, Workload
from gateup.errors import UsageError
from gateup.model import presets
from gateup.model.quant import mix
from gateup.model.quant.formats import stored_as

GIB = 1 << 30


def plan_for(
    name: str,
    training: Training,
    *,
    ctx: int = 1024,
    fmt: str = "bf16",
    parallel: Parallel = Parallel(),  # noqa: B008
) -> MemoryPlan:
    spec = presets.spec(name)
    workload = Workload(ctx=ctx, training=training, parallel=parallel)
    return memory(spec, mix.stored(spec, fmt), workload)


def total(plan: MemoryPlan, start: str, phase: str = "logits") -> int:
    return sum(i.nbytes for i in plan.alive(phase) if i.label.startswith(start))


def group(plan: MemoryPlan, name: str, phase: str) -> int:
    return plan.by_group(phase).get(name, 0)  # type: ignore[call-overload, no-any-return]


def test_qwen3_4b_at_13k_tokens() -> None:
    """LoRA ran out of 80 GB: gate, up, act and product of 36 layers alone are 33.9 GiB."""
    full = plan_for("qwen3-4b", Training("full"), ctx=13_000)
    widths = group(full, "mlp", "logits") - 13_000 * 2560 * 2 * 36
    assert widths == 36_421_632_000
    ckpt = plan_for("qwen3-4b", Training("full", checkpointing="layer"), ctx=13_000)
    assert total(ckpt, "layer inputs") == 36 * 13_000 * 2560 * 2 == 2_396_160_000
    assert round(2_396_160_000 / GIB, 2) == 2.23


def test_data_parallel_shards_leave_activations_alone() -> None:
    one = plan_for("llama-3-8b", Training("full"))
    eight = plan_for("llama-3-8b", Training("full"), parallel=Parallel(fsdp=8))
    for name in ("mlp", "attention", "norm", "logits"):
        assert group(one, name, "logits") == group(eight, name, "logits")
    for name in ("gradients", "optimizer"):
        assert group(eight, name, "optimizer") == group(one, name, "optimizer") // 8


def test_full_training_by_parameter() -> None:
    n = 8_030_261_248
    plan = plan_for("llama-3-8b", Training("full"))
    assert group(plan, "gradients", "optimizer") == 2 * n
    assert group(plan, "optimizer", "optimizer") == 8 * n
    fp32 = plan_for("llama-3-8b", Training("full", autocast=True), fmt="f32")
    assert fp32.peaks["optimizer"] == 16 * n
    mixed = plan_for("llama-3-8b", Training("full", autocast=True))
    assert group(mixed, "optimizer", "optimizer") == 12 * n


def test_untied_embedding_gets_its_gradient_last() -> None:
    plan = plan_for("llama-3-8b", Training("full"))
    embedding = 128_256 * 4096 * 2
    assert group(plan, "gradients", "optimizer") - group(plan, "gradients", "backward") == embedding
    tied = plan_for("qwen3-0.6b", Training("full"))
    assert group(tied, "gradients", "optimizer") == group(tied, "gradients", "backward")


def test_accumulated_gradients_outlive_the_step() -> None:
    once = plan_for("llama-3-8b", Training("full"))
    more = plan_for("llama-3-8b", Training("full", accumulation=4))
    assert group(once, "gradients", "logits") == 0
    assert group(more, "gradients", "logits") == 2 * 8_030_261_248


@pytest.mark.parametrize("dtype", [None, "f32"])
def test_gradient_dtype(dtype: str | None) -> None:
    plan = plan_for("qwen3-0.6b", Training("full", grad_dtype=dtype))
    size = 4 if dtype else 2
    assert group(plan, "gradients", "optimizer") == size * 596_049_920


def test_8bit_states_and_their_scales() -> None:
    """Two bytes a parameter, two fp32 scales per 256; the embedding and norms stay in fp32."""
    spec = presets.spec("llama-3-8b")
    plan = plan_for("llama-3-8b", Training("full", optimizer="adamw8bit"))
    want = 0
    for row in spec.rows:
        # A norm of 4096 values is just large enough for 8 bits.
        wide = row.part == "embedding" or row.params < 4096
        want += 8 * row.params if wide else 2 * row.params + 8 * (row.params // 256)
    assert group(plan, "optimizer", "optimizer") == want
    assert (
        group(plan_for("llama-3-8b", Training("full", optimizer="sgd")), "optimizer", "optimizer")
        == 0
    )


@pytest.mark.parametrize("dtype", [torch.float32])
def test_adamw_keeps_two_moments(dtype: torch.dtype) -> None:
    weight = torch.zeros(1000, dtype=dtype, requires_grad=True)
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    state = optimizer.state[weight]
    moments = [v for v in state.values() if v.numel() == 1000]
    assert sum(v.nbytes for v in moments) == 1000 * 2 * 4


def test_lora_on_llama_3_8b() -> None:
    plan = plan_for("llama-3-8b", Training("lora", LoRA(16)), ctx=8192)
    n = 16 * 81_920 * 32
    assert total(plan, "adapters", "load") == 4 * n
    assert group(plan, "gradients", "optimizer") == 4 * n
    assert group(plan, "optimizer", "optimizer") == 8 * n
    # fp32 copies: q, k, v, gate, up read H each, o heads·d, down I.
    inputs = 4 * (6 * 4096 + 14336) + 7 * 4 * 16
    assert total(plan, "other layers: adapter") == 31 * 8192 * inputs
    # Frozen weights: act(gate), gate and up of the MLP.
    assert group(plan, "mlp", "logits") == 32 * 8192 * 6 * 14336


def test_lora_off_the_mlp_keeps_three_widths_only() -> None:
    plan = plan_for("llama-3-8b", Training("lora", LoRA(16, targets=("attention",))), ctx=8192)
    assert total(plan, "other layers: adapter") == 31 * 8192 * (4 * 4 * 4096 + 4 * 4 * 16)


def test_adapters_of_the_compute_dtype_share_inputs() -> None:
    wide = plan_for("llama-3-8b", Training("lora", LoRA(16)))
    lean = plan_for("llama-3-8b", Training("lora", LoRA(16, dtype="bf16")))
    # One x for q, k, v; o's is kept by attention; one for gate, up; down's.
    assert total(lean, "other layers: adapter") == 31 * 1024 * 2 * (2 * 4096 + 14336 + 7 * 16)
    assert total(lean, "other layers: adapter") < total(wide, "other layers: adapter") / 3


def test_qlora_trains_beside_packed_weights() -> None:
    plan = plan_for("llama-3-8b", Training("qlora", LoRA(16)), fmt="nf4")
    assert plan.peaks["load"] < plan_for("llama-3-8b", Training("lora", LoRA(16))).peaks["load"] / 2
    item = next(i for i in plan.items if "dequantised" in i.label)
    assert item.nbytes == 4096 * 14336 * 2
    assert set(item.phases) == {"mlp", "attention", "backward"}


def test_full_training_needs_plain_weights() -> None:
    with pytest.raises(UsageError) as error:
        plan_for("llama-3-8b", Training("full"), fmt="nf4")
    assert str(error.value) == (
        "full training of nf4 weights\n"
        "  expected: weights in a plain dtype (bf16, f16, f32)\n"
        "  remedy: train adapters on them: --train qlora"
    )


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
def test_engines_that_only_infer(engine: str) -> None:
    spec = presets.spec("qwen3-0.6b")
    workload = Workload(engine=engine, training=Training())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"{engine} does not train"):
        memory(spec, stored_as(spec.rows, "bf16"), workload)


def test_loss_takes_14_bytes_a_logit_in_bf16() -> None:
    plan = plan_for("llama-3-8b", Training(), ctx=1024)
    assert group(plan, "logits", "logits") == 14 * 1024 * 128_256


def test_autocast_keeps_cast_weights() -> None:
    spec = presets.spec("llama-3-8b")
    matmul = sum(r.params for r in spec.rows if r.matmul)
    plan = plan_for("llama-3-8b", Training("full", autocast=True), fmt="f32")
    assert total(plan, "autocast copies of the weights") == 2 * matmul
    ckpt = plan_for("llama-3-8b", Training("full", autocast=True, checkpointing="layer"), fmt="f32")
    layer = sum(r.params for r in spec.rows if r.matmul and r.layer == 0)
    assert total(ckpt, "autocast copies of one layer", "mlp") == 2 * layer
    assert total(ckpt, "autocast copies of the weights", "mlp") == 0


def test_experts_with_adapters_are_kept_twice() -> None:
    plan = plan_for("qwen3-30b-a3b", Training("lora", LoRA(4)))
    experts = 128 * 3 * 768 * 2048 * 2
    assert total(plan, "experts and router with adapters: one") > experts
    plain = plan_for("qwen3-30b-a3b", Training("lora", LoRA(4, targets=("attention",))))
    assert total(plain, "experts and router") == 0


def test_adapters_under_tensor_parallel() -> None:
    """Column-parallel: A whole, B split; row-parallel: A split, B whole."""
    two = plan_for("llama-3-8b", Training("lora", LoRA(16)), parallel=Parallel(tp=2))
    H, width, kv, r = 4096, 14336, 1024, 16
    column = 3 * H + H // 2 + kv // 2 * 2 + 2 * (H + width // 2)
    row = H // 2 + H + width // 2 + H
    assert total(two, "adapters", "load") == 4 * r * 32 * (column + row)


def test_stages_of_a_pipeline_hold_their_own_adapters() -> None:
    one = plan_for("llama-3-8b", Training("lora", LoRA(16)))
    four = plan_for("llama-3-8b", Training("lora", LoRA(16)), parallel=Parallel(pp=4))
    assert total(four, "adapters", "load") == total(one, "adapters", "load") // 4


def test_tiles_shorten_what_passes() -> None:
    spec = presets.spec("llama-3-8b")
    stored = stored_as(spec.rows, "bf16")
    eager = Workload(ctx=8192, training=Training("full", save="input"))
    tiled = replace(eager, execution="tiled", tile=1024)
    passing = [
        next(i for i in memory(spec, stored, w).items if i.label == "MLP, gradients in passing")
        for w in (eager, tiled)
    ]
    assert passing[0].nbytes == 8 * passing[1].nbytes
