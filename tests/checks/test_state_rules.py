"""After a run: what the log shows, and healthy logs that show nothing."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateup.checks.finding import Finding
from gateup.checks.runner import check
from gateup.checks.state_rules import read_log

N = 60


def log(
    loss: Callable[[int], Any] = lambda i: 2.0 * math.exp(-i / 40) + 0.5,
    grad: Callable[[int], Any] = lambda i: 1.5,
    rate: Callable[[int], Any] = lambda i: 1e-4 * (1 - i / N),
    n: int = N,
    **more: Any,
) -> dict[str, Any]:
    """trainer_state.json of a run of n·10 steps, logged every 10, with noise on the loss."""
    noise = random.Random(0)
    entries: list[dict[str, Any]] = []
    for i in range(n):
        value = loss(i)
        if isinstance(value, float) and math.isfinite(value) and value:
            value += noise.gauss(0, 0.05)
        entries.append(
            {
                "epoch": i / n,
                "grad_norm": grad(i),
                "learning_rate": rate(i),
                "loss": value,
                "step": 10 * (i + 1),
            }
        )
    entries.append({"epoch": 1.0, "step": 10 * n, "train_loss": 1.0, "train_runtime": 60.0})
    return {"global_step": 10 * n, "max_steps": 10 * n, "log_history": entries} | more


def findings(state: dict[str, Any], **asked: Any) -> list[Finding]:
    asked.setdefault("trainer", state)
    report = check("llama-3-8b", **asked)
    assert not report.failed
    return [f for f in report.findings if f.rule.startswith("run.")]


def one(state: dict[str, Any], rule: str) -> Finding:
    found = findings(state)
    assert [f.rule for f in found] == [rule], [f.title for f in found]
    return found[0]


@pytest.mark.parametrize(
    "state",
    [
        log(),
        log(n=5, loss=lambda i: 1.7),  # too short for a trend
        log(loss=lambda i: 1.7 - 0.004 * i),
        log(grad=lambda i: math.inf if i == 3 else 1.0),  # noted, no more
        log(rate=lambda i: 2e-5),
        log(rate=lambda i: 0.0 if i == 0 else 1e-4),  # warm-up starts at 0
        {"log_history": []},
        {"log_history": None},
        {"log_history": [1, "x", {}, {"loss": "high"}, {"loss": None, "step": "3"}]},
    ],
)
def test_healthy_runs(state: dict[str, Any]) -> None:
    assert [f.title for f in findings(state) if f.severity != "note"] == []


def test_the_file_with_nan_as_transformers_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps(log(loss=lambda i: math.nan if i > 30 else 1.0), indent=2))
    assert "NaN" in path.read_text()
    found = findings({}, trainer=path)
    assert found[0].rule == "run.loss"
    assert found[0].evidence[0].subject == "loss, step 320"


@pytest.mark.parametrize(
    ("broken", "first"), [(lambda i: i >= 20, 210), (lambda i: i == 7, 80), (lambda i: True, 10)]
)
def test_a_loss_that_is_no_number(broken: Callable[[int], bool], first: int) -> None:
    f = one(log(loss=lambda i: math.nan if broken(i) else 1.0), "run.loss")
    assert f.severity == "error"
    assert f.numbers["first_step"] == first
    assert f"first at step {first:,}" in f.title
    assert "bf16" in f.remedy


def test_text_and_infinity_count_too() -> None:
    assert one(log(loss=lambda i: "nan" if i == 9 else 1.0), "run.loss").numbers["entries"] == 1
    assert one(log(loss=lambda i: -math.inf if i == 9 else 1.0), "run.loss").severity == "error"


def test_zero_loss_with_nan_gradients_is_the_loggers_filter() -> None:
    found = findings(log(loss=lambda i: 0.0, grad=lambda i: math.nan))
    assert [f.rule for f in found] == ["run.gradients", "run.loss"]
    assert "60 gradient norms are NaN" in found[1].cause
    assert "logging_nan_inf_filter" in found[1].remedy


def test_zero_loss_alone_is_masked_labels() -> None:
    f = one(log(loss=lambda i: 0.0 if i % 2 else 1.0), "run.loss")
    assert f.title == "the loss is exactly 0 in 30 of 60 entries"
    assert "-100" in f.cause


@pytest.mark.parametrize(
    "loss", [lambda i: 1.7, lambda i: 1.7 - 0.00005 * i, lambda i: 2.0 + 0.0001 * i]
)
def test_a_flat_loss(loss: Callable[[int], float]) -> None:
    f = one(log(loss=loss), "run.loss")
    assert f.severity == "warning"
    assert "flat from the start" in f.title
    assert "enable_input_require_grads()" in f.remedy


def test_e4_in_the_log_no_gradient_and_a_flat_loss() -> None:
    found = findings(log(loss=lambda i: 1.7, grad=lambda i: 0.0))
    assert [(f.rule, f.severity) for f in found] == [
        ("run.gradients", "error"),
        ("run.loss", "warning"),
    ]
    assert found[0].title == "the gradient is exactly 0 in all 60 entries: nothing was trained"
    assert "Rank, alpha and learning rate are not at fault" in found[0].remedy
    assert found[1].cause == "Nothing is learnt: no gradient reaches the trained weights."


@pytest.mark.parametrize("top", [3.0, 9.0])
def test_a_loss_that_rises(top: float) -> None:
    f = one(log(loss=lambda i: 1.5 + (top - 1.5) * i / N), "run.loss")
    assert f.title.startswith("the loss rose from")
    assert "learning rate" in f.remedy


@pytest.mark.parametrize(("every", "severity"), [(5, "error"), (25, "note")])
def test_gradients_that_overflow(every: int, severity: str) -> None:
    f = one(log(grad=lambda i: math.nan if i % every == 3 else 1.0), "run.gradients")
    assert f.severity == severity


@pytest.mark.parametrize("since", [20, 50])
def test_a_rate_that_ends_early(since: int) -> None:
    f = one(log(rate=lambda i: 1e-4 if i < since else 0.0), "run.schedule")
    assert f.severity == "warning"
    step = 10 * (since + 1)
    assert f.title == (
        f"the learning rate is 0 from step {step} of 600 on: {600 - step} steps for nothing"
    )


def test_a_rate_of_zero_throughout() -> None:
    f = one(log(rate=lambda i: 0.0), "run.schedule")
    assert (f.severity, f.title) == (
        "error",
        "the learning rate is 0 in every entry: nothing was trained",
    )


def test_a_schedule_that_ends_at_zero_is_as_it_should_be() -> None:
    assert findings(log(rate=lambda i: 1e-4 * (1 - (i + 1) / N))) == []


def test_a_run_that_stopped() -> None:
    f = one(log(max_steps=5000), "run.steps")
    assert (f.severity, f.title) == ("note", "the run stopped at step 600 of 5,000")


@pytest.mark.parametrize(("rate", "steps"), [(1e-8, 600), (1e-6, 20)])
def test_too_few_steps_for_the_adapter(tmp_path: Path, rate: float, steps: int) -> None:
    state = log(rate=lambda i: rate, n=steps // 10)
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": 4096,
                "intermediate_size": 11008,
                "num_hidden_layers": 2,
                "num_attention_heads": 32,
                "vocab_size": 32000,
            }
        )
    )
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    trainer = {"finetuning_type": "lora", "lora_rank": 16, "lora_alpha": 32}
    report = check(tmp_path, trainer=trainer)
    assert not report.failed
    (f,) = [f for f in report.findings if f.rule == "run.steps"]
    assert f.numbers["reach"] == pytest.approx(2 * 16 * steps * rate / 64)
    state = log(rate=lambda i: 1e-4, n=steps // 10)
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    report = check(tmp_path, trainer=trainer)
    assert [f for f in report.findings if f.rule == "run.steps"] == []


@pytest.mark.parametrize(
    "state",
    [
        {"log_history": {"loss": 1}},
        {"log_history": [{"loss": [1], "grad_norm": {}, "learning_rate": True}]},
        {"log_history": [{"loss": 10**400, "step": -1}], "global_step": "9", "max_steps": 1.5},
        {"log_history": [{"loss": 1.0, "step": 1}] * 3000},
        {"log_history": [{"loss": 1e308, "learning_rate": 1e308, "step": 9}] * 30},
    ],
)
def test_odd_states(state: dict[str, Any]) -> None:
    findings(state)
    assert all(isinstance(v, float) for _, v in read_log(state).loss)
