"""Trainers' files by their numbers: memory as plan has it, learning rate, steps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from gateup.account.plan import plan
from gateup.checks.finding import Finding
from gateup.checks.runner import check
from gateup.checks.trainer_size_rules import HALF_STEP, reach

GIB = 1 << 30
LORA: dict[str, Any] = {
    "finetuning_type": "lora",
    "lora_rank": 8,
    "lora_target": "all",
    "cutoff_len": 2048,
    "per_device_train_batch_size": 1,
    "learning_rate": 1e-4,
    "bf16": True,
}
FULL = {"finetuning_type": "full", "bf16": True, "learning_rate": 1e-5}
F1 = LORA | {"cutoff_len": 13_000, "disable_gradient_checkpointing": True}


def of(values: dict[str, Any], rule: str, base: str = "qwen3-4b") -> list[Finding]:
    report = check(base, trainer=values)
    assert not report.failed
    return [f for f in report.findings if f.rule == rule]


def one(values: dict[str, Any], rule: str, base: str = "qwen3-4b") -> Finding:
    found = of(values, rule, base)
    assert len(found) == 1, [f.title for f in found]
    return found[0]


# --- memory ----------------------------------------------------------------------------------


def test_f1_qwen3_4b_at_13000_tokens() -> None:
    f = one(F1, "trainer.memory")
    assert f.severity == "warning"
    assert f.numbers["mlp_bytes"] == 4 * 13_000 * 9728 * 2 * 36 == 36_421_632_000
    assert f.numbers["checkpointed_bytes"] == 36 * 13_000 * 2560 * 2
    assert f.title.startswith("13,000 tokens without gradient checkpointing take about")
    assert f.evidence[1].found == "36,421,632,000 B = 33.9 GiB"
    assert "2,396,160,000 B = 2.23 GiB of layer inputs stay plus one layer's peak" in f.remedy
    assert int(f.numbers["peak"]) > 80e9  # it runs out of an 80 GB card


def test_f1_the_peaks_are_plans() -> None:
    f = one(F1, "trainer.memory")
    asked = {"train": "lora", "rank": 8, "ctx": 13_000}
    without = plan("qwen3-4b", **asked, checkpointing="none")
    with_ = plan("qwen3-4b", **asked, checkpointing="layer")
    assert f.numbers["peak"] == without.memory.peak
    assert f.numbers["peak_other"] == with_.memory.peak


def test_f1_plans_own_kept_inputs() -> None:
    with_ = plan("qwen3-4b", train="lora", ctx=13_000, checkpointing="layer")
    (kept,) = [i for i in with_.memory.items if i.label == "layer inputs, checkpointed"]
    assert kept.figure.value == 36 * 13_000 * 2560 * 2


@pytest.mark.parametrize(
    ("base", "cutoff", "batch"), [("llama-3-8b", 4096, 4), ("qwen2.5-14b", 8192, 2)]
)
def test_f1_elsewhere(base: str, cutoff: int, batch: int) -> None:
    values = F1 | {"cutoff_len": cutoff, "per_device_train_batch_size": batch}
    f = one(values, "trainer.memory", base)
    spec = plan(base).spec
    width = sum(x.mlp.intermediate_size for x in spec.layers)  # type: ignore[union-attr]
    assert f.numbers["mlp_bytes"] == 4 * cutoff * batch * width * 2
    assert f.severity == "warning"


def test_each_dialect_is_told_its_own_switch() -> None:
    f = one(F1, "trainer.memory")
    assert "(take disable_gradient_checkpointing out)" in f.remedy
    other = {"r": 8, "max_seq_length": 13_000, "per_device_train_batch_size": 1}
    g = one(other, "trainer.memory")
    assert "(set gradient_checkpointing: true with use_reentrant false)" in g.remedy
    assert g.numbers["peak"] == f.numbers["peak"]


def test_targets_that_leave_the_mlp_frozen_save_three_widths() -> None:
    values = F1 | {"lora_target": "q_proj,v_proj"}
    f = one(values, "trainer.memory")
    assert f.numbers["mlp_bytes"] == 3 * 13_000 * 9728 * 2 * 36


def test_between_a_desktop_card_and_a_server_card_it_is_a_note() -> None:
    f = one(F1 | {"cutoff_len": 6000}, "trainer.memory")
    assert f.severity == "note"
    assert 24 * GIB < int(f.numbers["peak"]) <= 80 * GIB


def test_trainers_default_batch_is_8() -> None:
    values = {k: v for k, v in F1.items() if k != "per_device_train_batch_size"}
    f = one(values | {"cutoff_len": 2048}, "trainer.memory")
    assert f.numbers["tokens"] == 8 * 2048


def test_full_training_of_a_large_model_on_one_card() -> None:
    f = one(FULL | {"cutoff_len": 2048}, "trainer.memory", "llama-3-70b")
    assert "with gradient checkpointing" in f.title
    assert "spread them (deepspeed, fsdp)" in f.remedy
    assert of(FULL | {"cutoff_len": 2048, "deepspeed": "z3.json"}, "trainer.memory") == []


@pytest.mark.parametrize(
    ("values", "base"),
    [
        (LORA | {"cutoff_len": 13_000}, "qwen3-4b"),
        (F1 | {"cutoff_len": 512}, "qwen3-4b"),
        (LORA | {"quantization_bit": 4}, "llama-3-8b"),
        ({"peft_type": "LORA", "r": 8, "lora_alpha": 16}, "llama-3-8b"),  # no length
        (FULL | {"cutoff_len": 2048, "deepspeed": "z3.json"}, "llama-3-70b"),
    ],
)
def test_runs_that_fit_are_silent(values: dict[str, Any], base: str) -> None:
    assert of(values, "trainer.memory", base) == []


def test_a_gguf_is_planned_for_in_bf16() -> None:
    values = F1 | {"cutoff_len": 100_000, "per_device_train_batch_size": 4}
    assert {f.severity for f in of(values, "trainer.memory", "smollm2")} == {"warning"}


@pytest.mark.parametrize(("cutoff", "base"), [(4096, "smollm2-135m"), (16_384, "llama-3-8b")])
def test_past_the_last_position(cutoff: int, base: str) -> None:
    limit = plan(base).spec.max_position_embeddings
    values = LORA | {"cutoff_len": cutoff}
    found = of(values, "trainer.memory", base)
    assert limit is not None
    if cutoff <= limit:
        assert found == []
        return
    (f,) = found
    assert f.title == f"sequences of {cutoff:,} tokens, and the model has {limit:,} positions"
    assert of(values | {"rope_scaling": "dynamic"}, "trainer.memory", base) == []


def test_f3_logits_for_every_position() -> None:
    """262,144 logits in fp32 are 1 MiB a token: 20,100,448,256 bytes hold 19,169 positions."""

    def logits(ctx: int, *, every: bool) -> int:
        made = plan("gemma-3-4b", ctx=ctx, dtype="f32", all_logits=every)
        return sum(int(i.figure.value) for i in made.memory.items if i.label == "logits")

    vocab = plan("gemma-3-4b").spec.vocab_size
    per_token = logits(2001, every=True) - logits(2000, every=True)
    assert per_token == vocab * 4  # 262,208 here: 64 rows more than the thread's 262,144
    assert logits(24_180, every=False) == logits(100, every=False) == 2 * vocab * 4
    assert 20_100_448_256 // (262_144 * 4) == 19_169
    assert 24_179 < 25_353_916_928 / (262_144 * 4) < 24_180


# --- learning rate ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "severity"),
    [
        (LORA | {"learning_rate": 1e-6}, "warning"),
        (LORA | {"learning_rate": 5e-3}, "warning"),
        (LORA | {"learning_rate": 0}, "error"),
        (LORA | {"learning_rate": -1e-4}, "error"),
        (LORA | {"learning_rate": 1.0}, "error"),
        (FULL | {"learning_rate": 1e-3}, "warning"),
        (FULL | {"learning_rate": "1e-9"}, "warning"),
        (LORA | {"stage": "dpo", "learning_rate": 1e-3}, "warning"),
    ],
)
def test_rates_out_of_range(values: dict[str, Any], severity: str) -> None:
    f = one(values, "trainer.learning_rate")
    assert f.severity == severity
    assert f.evidence[0].subject == "learning_rate"
    assert f.remedy.startswith("Usual is")


@pytest.mark.parametrize(
    "values",
    [
        LORA,
        LORA | {"learning_rate": 2e-5},
        LORA | {"learning_rate": 1e-3},
        FULL,
        FULL | {"learning_rate": 1e-6},
        LORA | {"stage": "dpo", "learning_rate": 5e-6},
        FULL | {"stage": "pt", "learning_rate": 6e-4},
        LORA | {"optim": "adafactor", "learning_rate": 5e-3},
        LORA | {"finetuning_type": "freeze", "learning_rate": 1e-3},
    ],
)
def test_usual_rates_are_silent(values: dict[str, Any]) -> None:
    assert of(values, "trainer.learning_rate") == []


# --- steps -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "total"),
    [
        ({"max_steps": 10, "learning_rate": 1e-5}, 10),
        ({"dataset": "a", "max_samples": 16, "num_train_epochs": 1, "learning_rate": 6e-6}, 16),
        (
            {
                "dataset": "a,b",
                "max_samples": 40,
                "gradient_accumulation_steps": 8,
                "num_train_epochs": 2,
                "learning_rate": 6e-6,
            },
            20,
        ),
    ],
)
def test_too_few_steps(change: dict[str, Any], total: int) -> None:
    f = one(LORA | change, "trainer.steps", "llama-3-8b")
    assert f.severity == "warning"
    assert f.numbers["steps"] == total
    rate = change["learning_rate"]
    assert f.numbers["reach"] == pytest.approx(2 * 8 * total * rate / 64)
    assert f"{total} · {rate:g} = {total * rate:.1e}" in f.evidence[0].found


@pytest.mark.parametrize(
    "change",
    [
        {"max_steps": 100},
        {"dataset": "a", "max_samples": 1000},
        {},
        {"finetuning_type": "full", "max_steps": 3, "learning_rate": 1e-6},
    ],
)
def test_steps_enough_or_unknown(change: dict[str, Any]) -> None:
    assert of(LORA | change, "trainer.steps", "llama-3-8b") == []


@pytest.mark.parametrize(
    ("change", "severity", "text"),
    [
        ({"max_steps": 100, "warmup_steps": 100}, "warning", "the warm-up of 100 steps outlasts"),
        ({"max_steps": 100, "warmup_steps": 500}, "warning", "the warm-up of 500 steps outlasts"),
        ({"warmup_ratio": 0.8}, "warning", "warmup_ratio is 0.8"),
        ({"warmup_ratio": 100}, "error", "warmup_ratio is 100"),
    ],
)
def test_warmup(change: dict[str, Any], severity: str, text: str) -> None:
    f = one(LORA | change, "trainer.steps")
    assert f.severity == severity
    assert f.title.startswith(text)


@pytest.mark.parametrize(
    "change", [{"warmup_ratio": 0.1}, {"max_steps": 100, "warmup_steps": 10}, {"warmup_steps": 9}]
)
def test_usual_warmups(change: dict[str, Any]) -> None:
    assert of(LORA | change, "trainer.steps") == []


def test_the_bound_holds_for_a_real_adapter_and_is_not_far_off() -> None:
    """AdamW on a LoRA pair: after n steps no entry of scale·B·A is past the bound; with gradients
    of one sign B gets there."""
    torch.manual_seed(0)
    r, inp, out, n, rate, scale = 4, 256, 64, 30, 1e-3, 2.0
    a = torch.nn.Parameter(torch.empty(r, inp))
    torch.nn.init.kaiming_uniform_(a, a=math.sqrt(5))  # as PEFT does
    assert float(a.detach().abs().max()) <= 1 / math.sqrt(inp)
    b = torch.nn.Parameter(torch.zeros(out, r))
    optimizer = torch.optim.AdamW([b], lr=rate)
    x = torch.randn(128, inp)
    target = torch.randn(128, out)
    for _ in range(n):
        optimizer.zero_grad()
        ((x @ (scale * b @ a).T - target) ** 2).mean().backward()
        optimizer.step()
    moved = float(b.detach().abs().max())
    assert 0.5 * n * rate < moved <= n * rate * 1.01
    change = float((scale * b @ a).detach().abs().max())
    assert change <= reach(scale, r, n * rate, inp)


def test_half_a_step_of_bf16_is_what_merging_rounds_away() -> None:
    weight = torch.tensor(0.02, dtype=torch.bfloat16)
    assert (weight.float() + 0.49 * 2 * HALF_STEP).bfloat16() == weight
    assert (weight.float() + 1.01 * HALF_STEP).bfloat16() != weight
