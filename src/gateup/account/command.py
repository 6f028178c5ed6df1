"""A remedy as the `gateup plan` command that plans for it.

What is printed was planned again from the options it states: a command whose run differs from the
remedy in any part is not given.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from gateup.account.fit import Verdict
from gateup.account.options import PlanOptions
from gateup.account.remedies import Remedy
from gateup.account.scenario import Scenario
from gateup.account.workload import Training
from gateup.errors import GateupError

UNSAID = "no gateup plan command: the command line cannot state this run"

Again = Callable[[PlanOptions, str | None], Scenario]


@dataclass(frozen=True)
class Asked:
    """The question as it was put: the model's reference, its --base, the options."""

    ref: str
    base: str | None
    options: PlanOptions


def with_commands(verdict: Verdict, asked: Asked, again: Again) -> Verdict:
    """The verdict with each remedy's command.

    again  the scenario that options give, for the model asked about or the preset named
    """
    told = tuple(_told(r, verdict.scenario, asked, again) for r in verdict.remedies)
    return replace(verdict, remedies=told)


def _told(remedy: Remedy, before: Scenario, asked: Asked, again: Again) -> Remedy:
    after = remedy.scenario
    preset = after.spec.name if after.spec is not before.spec else None
    for options in _candidates(asked.options, before, after):
        try:
            planned = again(options, preset)
        except GateupError:  # a run that the command line refuses
            continue
        if _same(planned, after) and planned.memory().peak == remedy.peak:
            ref, base = (preset, None) if preset else (asked.ref, asked.base)
            return replace(remedy, command=command(ref, base, options))
    return replace(remedy, command="", unsaid=UNSAID)


def _same(one: Scenario, other: Scenario) -> bool:
    """Whether two scenarios are one run; notes aside, and an adapter's scale, which no byte has."""
    return (one.fmt, one.workload, one.device, one.first_gpu_layer, one.cpu_moe_layers) == (
        (other.fmt, other.workload, other.device, other.first_gpu_layer, other.cpu_moe_layers)
    ) and one.spec.name == other.spec.name


def _candidates(asked: PlanOptions, before: Scenario, after: Scenario) -> Iterator[PlanOptions]:
    """Options of the run, those that leave most to gateup's defaults first."""
    training = after.workload.training
    options = _options(asked, before, after)
    own_format = training is not None and training.method == "qlora" and after.fmt == "nf4"
    unchanged = after.fmt == before.fmt and after.spec is before.spec
    if unchanged or own_format:
        yield replace(options, quant=asked.quant if unchanged else None)
    if after.fmt is not None:
        yield replace(options, quant=after.fmt)
    if training is not None and training.method != "full" and not training.lora.modules:
        rank, targets = training.lora.rank, ",".join(training.lora.targets)
        yield replace(options, quant=after.fmt, rank=rank, targets=targets)


def _options(asked: PlanOptions, before: Scenario, after: Scenario) -> PlanOptions:
    """The options that state `after`, weights' format aside."""
    work, was = after.workload, before.workload
    inference = work.training is None
    tiled = work.execution == "tiled"
    kv = "f16" if work.engine == "llama.cpp" else work.compute_dtype
    ubatch = {"llama.cpp": 512, "vllm": 2048}.get(work.engine, work.ubatch)
    layers = after.spec.num_layers + 1
    return replace(
        asked,
        quant=None,
        ctx=work.ctx,
        batch=work.batch,
        kv=work.kv_type if inference and work.kv_type != kv else None,
        engine=asked.engine if work.engine == was.engine else work.engine,
        ubatch=work.ubatch if inference and work.ubatch != ubatch else None,
        execution=work.execution,
        tile=work.tile if tiled else 1024,
        flash=work.flash,
        device=_device(asked.device, after),
        tp=work.parallel.tp,
        pp=work.parallel.pp,
        ep=work.parallel.ep,
        fsdp=work.parallel.fsdp,
        gpu_layers=None if after.gpu_layers is None else min(after.gpu_layers, layers),
        cpu_moe_layers=after.cpu_moe_layers or None,
        measure=False,
        **_trained(asked, work.execution, work.training),
    )


def _trained(asked: PlanOptions, execution: str, training: Training | None) -> dict[str, Any]:
    if training is None:
        return {}
    out: dict[str, Any] = {
        "train": training.method,
        "autocast": training.autocast,
        "optimizer": _unless(training.optimizer, "adamw"),
        "save": _unless(training.save, "all" if execution == "fused" else "hf"),
        "checkpointing": _unless(training.checkpointing, "none"),
        "loss": _unless(training.loss, "full"),
        "accumulation": _unless(training.accumulation, 1),
    }
    if training.method == "full":
        return out | {"rank": None, "alpha": None, "targets": None}
    lora = training.lora
    if not lora.modules:  # else the adapter that was opened has them
        out |= {"rank": _unless(lora.rank, 16), "targets": _unless(",".join(lora.targets), "all")}
    return out | {"alpha": lora.alpha if asked.train != "full" else None}


def _unless(value: object, default: object) -> object:
    return None if value == default else value


def _device(asked: str | None, after: Scenario) -> str | None:
    """The text of --device with as many devices as the run takes."""
    if asked is None or after.device is None:
        return None
    name = re.sub(r"^\s*\d{1,9}\s*[x×*]\s*", "", asked).strip()
    return name if after.device.count == 1 else f"{after.device.count}x{name}"


def command(ref: str, base: str | None, options: PlanOptions) -> str:
    """`gateup plan REF --option value …`, quoted for a POSIX shell."""
    words = ["gateup", "plan", f"./{ref}" if ref.startswith("-") else ref]
    if base is not None:
        words += ["--base", base]
    for f in fields(PlanOptions):
        value, flags = getattr(options, f.name), f.metadata["flags"][0]
        if value == f.default:
            continue
        if isinstance(value, bool):
            on, _, off = flags.partition("/")
            words.append(on if value else off)
        else:
            words += [flags, str(value)]
    return shlex.join(words)
