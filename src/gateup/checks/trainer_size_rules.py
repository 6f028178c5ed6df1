"""Trainers' files by their numbers: memory, learning rate, steps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gateup.account.machine import GPUS
from gateup.account.memory import MemoryPlan
from gateup.account.options import PlanOptions
from gateup.account.plan import choose_format, compute_dtype
from gateup.account.scenario import Scenario, stored_in
from gateup.account.workload import LoRA, Optimizer, Training, Workload
from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding
from gateup.checks.lora_targets import match_targets
from gateup.checks.rule import rule
from gateup.checks.trainer_files import TrainerRun
from gateup.checks.trainer_rules import run_of, setting
from gateup.errors import UsageError
from gateup.model.spec import ModelSpec, active_width

GIB = 1 << 30
# What a run is held against where no device is named: the usual server card, the largest known.
USUAL, LARGEST = GPUS["h100-sxm"].memory, GPUS["mi300x"].memory
DESKTOP = GPUS["rtx4090"].memory
# Saved for backward in eager SwiGLU: gate, act(gate), up, and their product where down trains.
WIDTHS, WIDTHS_FROZEN = 4, 3
# bf16 numbers at 0.02, a usual size of a weight, lie 2^-13 apart; half of that rounds away.
HALF_STEP = 2.0**-14


@dataclass(frozen=True)
class Sizes:
    """Memory of one step. tokens: batch·cutoff; mlp: bytes the MLPs save without checkpointing;
    kept: bytes of the layers' inputs with it; the peaks are plan's."""

    tokens: int
    mlp: int
    kept: int
    now: MemoryPlan
    other: MemoryPlan


def sizes_of(context: Context, run: TrainerRun) -> Sizes | None:
    """None where the file does not say how long sequences are, or plan cannot take the run."""
    spec = context.spec
    cutoff = run.cutoff or (2048 if run.dialect == "llamafactory" else None)
    batch = 8 if run.batch is None else run.batch  # TrainingArguments' default
    if cutoff is None or batch < 1 or cutoff < 1 or run.method not in ("lora", "full"):
        return None
    try:
        now = _scenario(context, run, cutoff, batch, bool(run.checkpointing))
        other = _scenario(context, run, cutoff, batch, not run.checkpointing)
        plans = now.memory(), other.memory()
    except UsageError:  # a split, format or target that another rule reports
        return None
    tokens, b = batch * cutoff, 2
    width = sum(active_width(x.mlp) for x in spec.layers)
    n = WIDTHS if _mlp_trains(spec, run) else WIDTHS_FROZEN
    return Sizes(
        tokens, n * tokens * width * b, spec.num_layers * tokens * spec.hidden_size * b, *plans
    )


def _mlp_trains(spec: ModelSpec, run: TrainerRun) -> bool:
    """Whether down's input is kept: down trains, or has an adapter."""
    if run.method == "full" or run.targets in (None, "all-linear"):
        return True
    assert run.targets is not None
    hit = {leaf for m in match_targets(spec, run.targets) for leaf in m.leaves}
    return bool(hit & {"down_proj", "w2", "proj_2", "c_proj"})


def _scenario(
    context: Context, run: TrainerRun, cutoff: int, batch: int, checkpointing: bool
) -> Scenario:
    checkpoint, spec = context.checkpoint, context.spec
    quant = {4: "nf4", 8: "int8"}.get(run.bits or 0)
    autocast = run.method == "full" and _fp32_weights(run)
    if quant is None and autocast:
        quant = "f32"
    if quant is None and checkpoint.kind == "gguf":
        quant = "bf16"
    fmt, _ = choose_format(checkpoint, PlanOptions(quant=quant), [])
    stored = checkpoint.stored if fmt is None else None
    training = Training(
        method="full" if run.method == "full" else "qlora" if run.bits else "lora",
        lora=LoRA(rank=max(run.rank or 8, 1), targets=_targets(spec, run)),
        optimizer=_optimizer(run),
        checkpointing="layer" if checkpointing else "none",
        autocast=autocast,
        accumulation=max(run.accumulation or 1, 1),
    )
    workload = Workload(
        ctx=cutoff, batch=batch, compute_dtype=compute_dtype(spec), training=training
    )
    return Scenario(
        spec, fmt, stored if stored is not None else stored_in(spec, fmt or "bf16"), workload
    )


def _fp32_weights(run: TrainerRun) -> bool:
    """LLaMA-Factory trains fp32 copies under autocast unless pure_bf16 or sharding is on."""
    mixed = run.values.get("bf16") is True or run.values.get("fp16") is True
    pure = run.values.get("pure_bf16") is True
    return run.dialect == "llamafactory" and mixed and not pure and not run.sharded


def _targets(spec: ModelSpec, run: TrainerRun) -> tuple[str, ...]:
    if run.targets is None or run.targets == "all-linear":
        return ("all",)
    hit = [leaf for m in match_targets(spec, run.targets) for leaf in m.leaves]
    return tuple(dict.fromkeys(hit)) or ("all",)


def _optimizer(run: TrainerRun) -> Optimizer:
    name = setting(run.values, "optim")
    if "8bit" in name:
        return "adamw8bit"
    return "sgd" if name == "sgd" else "adamw"


def _activations(plan: MemoryPlan) -> int:
    """What no sharding of weights takes off a rank, at the peak."""
    items = (i for i in plan.items if plan.peak_phase in i.phases)
    spread = ("weights", "gradients", "optimizer")
    return sum(int(i.figure.value) for i in items if i.group not in spread)


@rule("trainer.memory", "cutoff_len and batch against memory", needs=["trainer"], worst="warning")
def memory(context: Context) -> Iterable[Finding]:
    """Without gradient checkpointing every layer keeps what its backward pass needs, for every
    token of the batch; in the MLP that is gate, up, act(gate) and their product, four tensors of
    width I, about half of the whole. Checkpointing keeps the layers' inputs alone and computes one
    layer's again.

    Example: LoRA on Qwen3-4B at 13,000 tokens in bf16, 36 layers of width 9728:

        4·13000·9728·2·36 = 36,421,632,000 B = 33.9 GiB for the MLPs
        36·13000·2560·2 B = 2.23 GiB with checkpointing, plus one layer's peak

    The peaks are plan's; they leave out what other processes hold. Also reported: sequences longer
    than the model's positions.
    """
    run = run_of(context)
    yield from _positions(context, run)
    sizes = sizes_of(context, run)
    if sizes is None:
        return
    now, other = sizes.now.peak, sizes.other.peak
    if run.sharded:
        now, other = _activations(sizes.now), _activations(sizes.other)
    if run.checkpointing and now <= LARGEST:
        return
    wasteful = not run.checkpointing and now > DESKTOP and 2 * other <= now
    if not (wasteful or now > USUAL):
        return
    per_rank = "of activations a rank" if run.sharded else "at the peak"
    how = "with" if run.checkpointing else "without"
    yield Finding(
        "trainer.memory",
        "warning" if now > USUAL else "note",
        f"{sizes.tokens:,} tokens {how} gradient checkpointing take about "
        f"{now / GIB:.1f} GiB {per_rank}",
        _memory_evidence(run, sizes),
        "One step does not fit one card."
        if run.checkpointing
        else "Every layer's activations are kept for the backward pass; the MLP's tensors of width "
        "I are the largest part.",
        _less(run, sizes, other),
        {
            "peak": now,
            "peak_other": other,
            "mlp_bytes": sizes.mlp,
            "checkpointed_bytes": sizes.kept,
            "tokens": sizes.tokens,
        },
    )


def _memory_evidence(run: TrainerRun, sizes: Sizes) -> tuple[Evidence, ...]:
    kept = f"{sizes.mlp:,} B = {sizes.mlp / GIB:.1f} GiB"
    return (
        Evidence(
            run.keys.get("cutoff", "cutoff_len"),
            f"{sizes.tokens:,} tokens a step (batch {run.batch or 8})",
            f"at most {USUAL // GIB} GiB: the usual server card",
            run.source,
        ),
        Evidence(
            "MLP activations",
            "recomputed layer by layer" if run.checkpointing else kept,
            "",
            "widths·T·I·2 bytes, all layers",
        ),
    )


def _less(run: TrainerRun, sizes: Sizes, other: int) -> str:
    if run.checkpointing:
        return (
            "Shorten cutoff_len or the batch, load the weights in 4 bits (quantization_bit: 4 with "
            "LoRA), or spread them (deepspeed, fsdp). gateup plan --train shows what helps."
        )
    how = (
        "take disable_gradient_checkpointing out"
        if run.dialect == "llamafactory"
        else "set gradient_checkpointing: true with use_reentrant false"
    )
    return (
        f"With checkpointing ({how}) {sizes.kept:,} B = {sizes.kept / GIB:.2f} GiB of layer inputs "
        f"stay plus one layer's peak: {other / GIB:.1f} GiB in all. Half the tokens need about "
        "half of the activations."
    )


def _positions(context: Context, run: TrainerRun) -> Iterable[Finding]:
    limit = context.spec.max_position_embeddings
    if run.cutoff and limit and run.cutoff > limit and not run.values.get("rope_scaling"):
        yield Finding(
            "trainer.memory",
            "warning",
            f"sequences of {run.cutoff:,} tokens, and the model has {limit:,} positions",
            (
                Evidence(
                    run.keys["cutoff"],
                    f"{run.cutoff:,}",
                    f"at most {limit:,}",
                    f"{context.source('config')}, field max_position_embeddings",
                ),
            ),
            "Positions past the last one were never trained.",
            f"Cut at {limit:,}, or set rope_scaling.",
            {"cutoff": run.cutoff, "positions": limit},
        )


# (lowest, highest) learning rate of AdamW that is not surprising, by (method, preference stage).
RATES = {
    ("lora", False): (5e-6, 3e-3),
    ("lora", True): (1e-7, 5e-4),
    ("full", False): (1e-7, 3e-4),
    ("full", True): (1e-8, 1e-4),
}
_PREFERENCE = ("dpo", "kto", "ppo", "rm", "orpo", "grpo")


@rule("trainer.learning_rate", "The learning rate suits what is trained", needs=["trainer"])
def learning_rate(context: Context) -> Iterable[Finding]:
    """Adam moves every trained number by about the learning rate a step, whatever the gradient's
    size. Adapters start at zero and want 1e-4 to 5e-4; weights that are trained already want 1e-6
    to 5e-5. A rate from the other method is off by a factor of ten to a hundred: full training at
    2e-4 unlearns, LoRA at 1e-6 does not arrive.

    Example: `finetuning_type: full`, `learning_rate: 1.0e-3`.
    """
    run = run_of(context)
    rate = run.learning_rate
    if rate is None:
        return
    if not 0 < rate < 0.1:
        yield _rate_finding(run, "error", rate, "above 0 and far below 0.1", "No run learns so.")
        return
    optim = setting(run.values, "optim")
    scratch = run.values.get("train_from_scratch") is True or setting(run.values, "stage") == "pt"
    if (optim and "adam" not in optim) or scratch or run.method not in ("lora", "full"):
        return
    preference = setting(run.values, "stage") in _PREFERENCE
    low, high = RATES[run.method, preference]
    if low <= rate <= high:
        return
    usual = {"lora": "1e-4 to 5e-4", "full": "1e-6 to 5e-5"}[run.method]
    if preference:
        usual = {"lora": "5e-6 to 5e-5", "full": "5e-7 to 5e-6"}[run.method]
    cause = (
        f"Adam moves each number by about the rate a step: {_name(run)} training at {rate:g} "
        + ("forgets what it knew, or diverges." if rate > high else "hardly moves.")
    )
    yield _rate_finding(run, "warning", rate, usual, cause)


def _name(run: TrainerRun) -> str:
    return "LoRA" if run.lora else str(run.method)


def _rate_finding(run: TrainerRun, severity: str, rate: float, usual: str, cause: str) -> Finding:
    where = f"of {_name(run)} training" if run.method else ""
    return Finding(
        "trainer.learning_rate",
        "error" if severity == "error" else "warning",
        f"learning rate {rate:g} is out of the range {where}".rstrip(),
        (Evidence("learning_rate", f"{rate:g}", usual, run.source),),
        cause,
        f"Usual is {usual}.",
        {"learning_rate": rate},
    )


def reach(scale: float, r: int, travel: float, inp: int) -> float:
    """The most that B·A can have changed a weight after its B moved by `travel` (steps·rate).

    |ΔW| <= scale·r·|B|·|A|, and A starts uniform within 1/√in (PEFT: Kaiming with a = √5).
    """
    return scale * r * travel / math.sqrt(inp)


@rule("trainer.steps", "There are steps enough, and warm-up ends", needs=["trainer"])
def steps(context: Context) -> Iterable[Finding]:
    """What can be known before running: a warm-up that outlasts the run never reaches its learning
    rate; a handful of steps cannot move an adapter. B starts at zero and Adam moves it by about
    the rate a step, so after the run |B| is at most steps·rate, and

        |ΔW| <= alpha/r · r · steps·rate / √in

    Example: 10 steps at 1e-5, rank 8, alpha 16, in 4096: 2·8·1e-4/64 = 2.5e-5. A weight of 0.02 in
    bf16 has neighbours 1.2e-4 apart, and merging rounds a change below 6.1e-5 away.
    """
    run = run_of(context)
    total = _steps(run)
    yield from _warmup(run)
    if total is None or not run.lora or run.learning_rate is None or not run.rank:
        return
    if run.alpha is None or total < 1 or run.learning_rate <= 0 or run.rank < 1:
        return
    scale = run.alpha / (math.sqrt(run.rank) if run.rslora else run.rank)
    most = reach(scale, run.rank, total * run.learning_rate, context.spec.hidden_size)
    if 0 < most < HALF_STEP:
        yield too_few(
            "trainer.steps", total, run.learning_rate, most, context.spec.hidden_size, run.source
        )


def too_few(rule_id: str, total: int, rate: float, most: float, inp: int, source: str) -> Finding:
    needed = math.ceil(total * HALF_STEP / most) * 10
    return Finding(
        rule_id,
        "warning",
        f"{total:,} steps at {rate:g} cannot move the adapter: |ΔW| stays below {most:.1e}",
        (
            Evidence(
                "steps · learning rate",
                f"{total:,} · {rate:g} = {total * rate:.1e}, the most that |B| can be",
                f"|ΔW| above {HALF_STEP:.1e}",
                source,
            ),
        ),
        f"Adam moves B by about the rate a step, from zero; with A within 1/√{inp} that is "
        "less than half the distance between bf16 numbers at 0.02, and merging rounds it away.",
        f"Train {needed:,} steps or more at this rate, or raise it.",
        {"steps": total, "learning_rate": rate, "reach": most},
    )


def _steps(run: TrainerRun) -> int | None:
    """Optimizer steps on one device, at most; None where the data's size is not in the file."""
    if run.max_steps is not None and run.max_steps > 0:
        return run.max_steps
    data = run.values.get("dataset")
    if run.max_samples is None or run.max_samples < 1 or not isinstance(data, str):
        return None
    samples = run.max_samples * len([d for d in data.split(",") if d.strip()])
    batches = math.ceil(samples / max(run.batch or 8, 1))
    epochs = 3.0 if run.epochs is None else run.epochs
    return math.ceil(math.ceil(batches / max(run.accumulation or 1, 1)) * max(epochs, 0))


def _warmup(run: TrainerRun) -> Iterable[Finding]:
    total, steps = run.max_steps or 0, run.warmup_steps
    if steps is not None and steps >= 1 and 0 < total <= steps:
        yield Finding(
            "trainer.steps",
            "warning",
            f"the warm-up of {steps:g} steps outlasts the run of {total:,}",
            (Evidence("warmup_steps", f"{steps:g}", f"below {total:,}", run.source),),
            f"The rate rises to {total / steps:.0%} of learning_rate and the run is over.",
            f"Take about {max(1, total // 20):,} (5%).",
            {"warmup_steps": steps, "max_steps": total},
        )
    ratio = run.warmup_ratio
    if ratio is not None and not 0 <= ratio <= 0.5:
        yield Finding(
            "trainer.steps",
            "error" if ratio < 0 or ratio > 1 else "warning",
            f"warmup_ratio is {ratio:g}",
            (Evidence("warmup_ratio", f"{ratio:g}", "0 to 0.1", run.source),),
            "It is the share of all steps in which the rate still rises.",
            "Take 0.03 to 0.1; for a number of steps the key is warmup_steps.",
            {"warmup_ratio": ratio},
        )
