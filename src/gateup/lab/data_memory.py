"""A run's memory by phase, its verdict, and its MLP by execution mode: the Memory page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from gateup.account.activations import as_run, dtype_bytes, mlp_transient, prefill_tokens
from gateup.account.figure import Figure, worst
from gateup.account.memory_items import Group
from gateup.account.options import PlanOptions
from gateup.account.plan import Plan
from gateup.account.workload import Execution
from gateup.lab.data_timeline import Timeline, timeline, widest

EXECUTIONS: tuple[Execution, ...] = get_args(Execution)
ENGINES = ("", "transformers", "llama.cpp", "vllm", "gateup")
TRAINING = ("", "lora", "qlora", "full")
CACHES = ("", "bf16", "f16", "q8_0", "q4_0", "f8_e4m3")
DEVICES = (
    "",
    "8GB",
    "12GB",
    "16GB",
    "24GB",
    "rtx4090",
    "rtx5090",
    "48GB",
    "80GB",
    "h100",
    "h200",
    "2xh100",
    "8xh100",
    "this",
)
# Engines whose MLP can be run another way, and whose prompts are not cut.
_OURS = ("", "transformers", "gateup")


def options_of(values: Mapping[str, Any]) -> PlanOptions:
    """The options for a page's values; "" and what does not go with the run are left out.

    Raises UsageError for what goes with it and cannot be.
    """
    train = values["train"] or None
    engine = values["engine"]
    tiled = values["execution"] == "tiled"
    ours = (engine in _OURS and not _gguf(values["quant"])) or train is not None
    return PlanOptions(
        quant=values["quant"] or None,
        ctx=values["ctx"],
        batch=values["batch"],
        kv=None if train else values["kv"] or None,
        engine=None if train and engine in ("llama.cpp", "vllm") else engine or None,
        execution=values["execution"] if ours else "eager",
        **({"tile": values["tile"]} if ours and tiled else {}),
        flash=values["flash"] or engine == "vllm",
        device=values["device"].strip() or None,
        tp=int(values["tp"]),
        train=train,
        checkpointing="layer" if train and values["checkpointing"] else None,
    )


def without_device(options: PlanOptions) -> PlanOptions:
    """The same run, not judged: what memory it takes is known long before what would fit."""
    return replace(options, device=None)


def _gguf(quant: str) -> bool:
    return quant.startswith("q") and "_" in quant


@dataclass(frozen=True)
class Phases:
    """Bytes by group in every phase, and each item with its formula."""

    peaks: Mapping[str, Mapping[Group, int]]
    peak_phase: str
    items: tuple[tuple[str, Group, tuple[str, ...], Figure], ...]

    @property
    def groups(self) -> tuple[Group, ...]:
        """Those that occur, in the order in which they first do."""
        return tuple(dict.fromkeys(g for by_group in self.peaks.values() for g in by_group))


def phases(plan: Plan) -> Phases:
    """The plan's memory as the page draws it."""
    memory = plan.memory
    return Phases(
        {phase: memory.by_group(phase) for phase in memory.peaks},
        memory.peak_phase,
        tuple((i.label, i.group, i.phases, i.figure) for i in memory.items),
    )


@dataclass(frozen=True)
class Modes:
    """The widest layer's MLP over one forward pass, in every execution mode.

    peaks  the library's figure for the largest step of each
    """

    timelines: Mapping[Execution, Timeline]
    peaks: Mapping[Execution, Figure]

    @property
    def most(self) -> int:
        """The largest step of all modes: one scale for all."""
        return max((t.total(t.peak) for t in self.timelines.values()), default=0)


def modes(plan: Plan) -> Modes:
    """By execution mode, for the plan's tokens and dtype, on one rank; empty without an MLP."""
    work = plan.workload
    spec = as_run(plan.spec, work)
    mlp = widest([x.mlp for x in spec.layers if x.mlp], spec.hidden_size)
    if mlp is None:
        return Modes({}, {})
    tokens, size = prefill_tokens(work), dtype_bytes(work.compute_dtype, "--dtype")
    one = replace(spec, layers=tuple(replace(x, mlp=mlp) for x in spec.layers))
    return Modes(
        {e: timeline(mlp, spec.hidden_size, tokens, size, e, work.tile) for e in EXECUTIONS},
        {e: mlp_transient(one, replace(work, execution=e), tokens) for e in EXECUTIONS},
    )


def at_peak(plan: Plan) -> dict[Group, Figure]:
    """What fills the peak by group, the largest first."""
    groups: dict[Group, list[Figure]] = {}
    for item in plan.memory.alive(plan.memory.peak_phase):
        groups.setdefault(item.group, []).append(item.figure)
    sums = {
        group: Figure(sum(f.value for f in figures), "B", worst(*(f.kind for f in figures)))
        for group, figures in groups.items()
    }
    return dict(sorted(sums.items(), key=lambda pair: -pair[1].value))
