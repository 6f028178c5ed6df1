"""After a run: what trainer_state.json's log tells about loss, gradients and learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding
from gateup.checks.rule import rule
from gateup.checks.trainer_files import read_run
from gateup.checks.trainer_size_rules import HALF_STEP, reach, too_few
from gateup.model.config import whole

# Below this many logged losses a trend cannot be told from noise.
MIN_LOG = 10
# No loss is as large, and means of such numbers overflow.
HUGE = 1e30
# A drop of less than 2% that is also within twice its standard error is none.
FLAT, SIGMAS = 0.02, 2.0
REENTRANT = (
    "With LoRA and gradient checkpointing call model.enable_input_require_grads(), or set "
    "use_reentrant false"
)


@dataclass(frozen=True)
class Log:
    """Training entries of log_history, in order: (step, value), NaN and infinity included."""

    loss: tuple[tuple[int, float], ...]
    grad_norm: tuple[tuple[int, float], ...]
    rate: tuple[tuple[int, float], ...]
    step: int | None
    max_steps: int | None


def read_log(state: Mapping[str, Any]) -> Log:
    """Whatever is numeric in the log; entries of other kinds are passed over."""
    history = state.get("log_history")
    entries = [e for e in history if isinstance(e, dict)] if isinstance(history, list) else []
    return Log(
        _series(entries, "loss"),
        _series(entries, "grad_norm"),
        _series(entries, "learning_rate"),
        _whole(state.get("global_step")),
        _whole(state.get("max_steps")),
    )


def _series(entries: Iterable[Mapping[str, Any]], key: str) -> tuple[tuple[int, float], ...]:
    out = []
    for i, entry in enumerate(entries):
        value = _number(entry.get(key))
        if value is not None:
            out.append((_whole(entry.get("step")) or i + 1, value))
    return tuple(out)


def _number(value: object) -> float | None:
    """Numbers also as text: some loggers write "nan"."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _whole(value: object) -> int | None:
    return value if whole(value) and value > 0 else None


def _log(context: Context) -> Log:
    assert context.trainer_state is not None
    return read_log(context.trainer_state)


def _source(context: Context) -> str:
    return context.source("trainer_state")


@rule("run.loss", "The loss is a number and goes down", needs=["trainer_state"])
def loss(context: Context) -> Iterable[Finding]:
    """What the logged training loss can show without a look at the data:

    - NaN or infinity: an overflow, most often fp16's above 65,504;
    - exactly 0.0: every label is masked (-100), or NaN steps that the logger filters and counts
      as 0 (logging_nan_inf_filter), which grad_norm then shows;
    - flat from the start: no gradient arrives (see run.gradients), or the rate is far too low;
    - rising: the rate is too high.

    With rewards in the log (GRPO, PPO) only NaN counts: their loss starts near 0 and may well rise.

    Example: 100 entries, first third 1.702 on average, last third 1.699: a drop of 0.2%, less than
    the noise from one batch to the next.
    """
    log = _log(context)
    if not log.loss:
        return
    broken = [(s, v) for s, v in log.loss if not abs(v) < HUGE]
    zero = [(s, v) for s, v in log.loss if v == 0]
    source = _source(context)
    if broken:
        yield Finding(
            "run.loss",
            "error",
            f"the loss is not a number in {len(broken)} of {len(log.loss)} entries, first at step "
            f"{broken[0][0]:,}",
            tuple(Evidence(f"loss, step {s}", str(v), "a number", source) for s, v in broken),
            "An overflow: fp16 ends at 65,504, which down_proj's input of some models exceeds; or "
            "a learning rate that is too high.",
            "Train in bf16, lower the learning rate, and start again from a checkpoint before "
            f"step {broken[0][0]:,}: weights that took a NaN step are lost.",
            {"entries": len(broken), "first_step": broken[0][0]},
        )
    elif _rewarded(context):
        return
    elif len(zero) > 1 or (zero and len(log.loss) == 1):
        yield _zero_loss(log, zero, source)
    else:
        yield from _trend(log, source)


def _rewarded(context: Context) -> bool:
    """Reinforcement learning: GRPO's loss is 0 at first, and rises with the divergence."""
    entries = (context.trainer_state or {}).get("log_history")
    return isinstance(entries, list) and any(isinstance(e, dict) and "reward" in e for e in entries)


def _zero_loss(log: Log, zero: Sequence[tuple[int, float]], source: str) -> Finding:
    bad = sum(not math.isfinite(v) for _, v in log.grad_norm)
    cause = (
        f"{bad} gradient norms are NaN: the steps overflowed, and the logger counts NaN as 0."
        if bad
        else "Every label of those batches is masked (-100): the template found no answer to "
        "train on, or cutoff_len cut it off."
    )
    return Finding(
        "run.loss",
        "error",
        f"the loss is exactly 0 in {len(zero)} of {len(log.loss)} entries",
        tuple(Evidence(f"loss, step {s}", "0.0", "above 0", source) for s, _ in zero),
        cause,
        "Train in bf16; set logging_nan_inf_filter false to see it at once."
        if bad
        else "Look at the labels of one batch: some must not be -100. Raise cutoff_len, check "
        "template.",
        {"zero": len(zero), "entries": len(log.loss), "nan_gradients": bad},
    )


def _trend(log: Log, source: str) -> Iterable[Finding]:
    values = [v for _, v in log.loss]
    k = len(values) // 3
    if len(values) < MIN_LOG:
        return
    first, last = values[:k], values[-k:]
    a, b = sum(first) / k, sum(last) / k
    noise = math.sqrt((_variance(first, a) + _variance(last, b)) / k)
    drop = (a - b) / abs(a) if a else 0.0
    numbers = {"first": a, "last": b, "drop": drop, "entries": len(values)}
    evidence = (
        Evidence("first third", f"{a:.4f} on average", "", source),
        Evidence("last third", f"{b:.4f} on average", "clearly lower", source),
    )
    if b > a * 1.3 and b - a > SIGMAS * noise:
        yield Finding(
            "run.loss",
            "warning",
            f"the loss rose from {a:.3f} to {b:.3f}",
            evidence,
            "Training diverges: the learning rate is too high, or the adapter's scale is.",
            "Take a third of the learning rate, with a warm-up of 3 to 10% of the steps.",
            numbers,
        )
    elif abs(drop) < FLAT and abs(a - b) <= SIGMAS * noise:
        still = [v for _, v in log.grad_norm if v == 0]
        yield Finding(
            "run.loss",
            "warning",
            f"the loss is flat from the start: {a:.4f} to {b:.4f} over {len(values)} entries",
            evidence,
            "Nothing is learnt: no gradient reaches the trained weights."
            if still and len(still) == len(log.grad_norm)
            else "Nothing is learnt: no gradient reaches the trained weights, the learning rate is "
            "far too low, or the model knew the data before.",
            f"Look at grad_norm and at lora_B (gateup check --adapter). {REENTRANT}.",
            numbers,
        )


def _variance(values: Sequence[float], mean: float) -> float:
    return sum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1)


@rule("run.gradients", "Gradients arrive and are numbers", needs=["trainer_state"])
def gradients(context: Context) -> Iterable[Finding]:
    """grad_norm is the length of all gradients together, before clipping. 0 in every entry means
    that nothing is trained: with LoRA under reentrant gradient checkpointing no layer's input asks
    for a gradient. Single infinities are normal in fp16 (the loss scaler skips the step and halves
    its scale); most of them are not.

    Example: grad_norm 0.0 in 50 of 50 entries.
    """
    norms, source = _log(context).grad_norm, _source(context)
    if not norms:
        return
    zero = [(s, v) for s, v in norms if v == 0]
    broken = [(s, v) for s, v in norms if not math.isfinite(v)]
    if len(zero) == len(norms) and len(norms) > 1:
        yield Finding(
            "run.gradients",
            "error",
            f"the gradient is exactly 0 in all {len(norms)} entries: nothing was trained",
            tuple(Evidence(f"grad_norm, step {s}", "0.0", "above 0", source) for s, _ in zero),
            "No trained weight gets a gradient: reentrant checkpointing with frozen embeddings, "
            "every label masked, or everything frozen.",
            f"{REENTRANT}. Rank, alpha and learning rate are not at fault.",
            {"zero": len(zero), "entries": len(norms)},
        )
    elif broken:
        most = 10 * len(broken) > len(norms)
        yield Finding(
            "run.gradients",
            "error" if most else "note",
            f"the gradient is not a number in {len(broken)} of {len(norms)} entries",
            tuple(Evidence(f"grad_norm, step {s}", str(v), "a number", source) for s, v in broken),
            "The backward pass overflows again and again."
            if most
            else "Single overflows are how fp16's loss scaler finds its scale; those steps are "
            "skipped.",
            "Train in bf16 or lower the learning rate." if most else "",
            {"broken": len(broken), "entries": len(norms)},
        )


@rule("run.schedule", "The learning rate lasts as long as the run", needs=["trainer_state"])
def schedule(context: Context) -> Iterable[Finding]:
    """A schedule is laid out for a number of steps. Where that number was too small (a dataset that
    grew, max_steps of an earlier run, devices counted twice) the rate is 0 for the rest, and
    nothing more is learnt; where it is 0 all the time nothing ever was.

    Example: learning_rate 0.0 from step 500 on in a run of 1,500 steps.
    """
    log, source = _log(context), _source(context)
    rates = log.rate
    if len(rates) < 2:
        return
    end = max(rates[-1][0], log.step or 0)
    if all(v == 0 for _, v in rates):
        yield Finding(
            "run.schedule",
            "error",
            "the learning rate is 0 in every entry: nothing was trained",
            (Evidence("learning_rate", "0.0", "above 0", source),),
            "Every step was skipped or ran at rate 0: a loss scaler that never found its scale "
            "(fp16), a rate of 0 in the settings, or a schedule of no steps.",
            "Look at learning_rate and max_steps in the settings; train in bf16.",
            {"entries": len(rates)},
        )
        return
    tail = len(rates)
    while tail and rates[tail - 1][1] == 0:
        tail -= 1
    if tail == len(rates) or end <= 0:
        return
    since = rates[tail][0]
    lost = end - since
    if lost > 0.05 * end:
        yield Finding(
            "run.schedule",
            "warning",
            f"the learning rate is 0 from step {since:,} of {end:,} on: {lost:,} steps for nothing",
            (Evidence(f"learning_rate, step {since}", "0.0", f"0 at step {end:,}", source),),
            "The schedule was laid out for fewer steps than were run.",
            f"Give it the run's {end:,} steps: set num_train_epochs or max_steps before the "
            "schedule is made, and do not carry it over with resume_from_checkpoint.",
            {"since": since, "end": end, "lost": lost},
        )


@rule("run.steps", "There were steps enough for the adapter to move", needs=["trainer_state"])
def steps(context: Context) -> Iterable[Finding]:
    """The steps that were run times the rate they ran at bound how far B can have moved from zero:

        |ΔW| <= alpha/r · r · Σ rate / √in

    Below half the distance between bf16 numbers at 0.02, 6.1e-5, merging rounds everything away.
    Also noted: a run that stopped before its last step.

    Example: 20 steps at 1e-6, rank 16, alpha 32, in 4096: 2·16·2e-5/64 = 1e-5.
    """
    log, source = _log(context), _source(context)
    if log.step and log.max_steps and log.step < log.max_steps:
        yield Finding(
            "run.steps",
            "note",
            f"the run stopped at step {log.step:,} of {log.max_steps:,}",
            (Evidence("global_step", f"{log.step:,}", f"{log.max_steps:,}", source),),
            "A checkpoint on the way, or a run that ended early.",
            "",
            {"step": log.step, "max_steps": log.max_steps},
        )
    rates = [v for _, v in log.rate if abs(v) < HUGE]
    size = _size(context)
    if not log.step or not rates or size is None:
        return
    scale, r = size
    rate = sum(rates) / len(rates)
    most = reach(scale, r, log.step * rate, context.spec.hidden_size)
    if 0 < most < HALF_STEP:
        yield too_few("run.steps", log.step, rate, most, context.spec.hidden_size, source)


def _size(context: Context) -> tuple[float, int] | None:
    """(scale, rank) of the adapter that was trained; None where none is known."""
    if context.adapter is not None:
        r, alpha, rslora = (
            context.adapter.rank,
            context.adapter.alpha,
            context.adapter.use_rslora,
        )
        return alpha / (math.sqrt(r) if rslora else r), r
    if context.trainer is None:
        return None
    run = read_run(context.trainer, context.source("trainer"))
    if not run.lora or not run.rank or run.rank < 1 or run.alpha is None or run.alpha < 0:
        return None
    return run.alpha / (math.sqrt(run.rank) if run.rslora else run.rank), run.rank
