"""An adapter folder that was opened: its own figures, run beside its base or trained on."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from gateup.account.figure import Figure
from gateup.account.ledger import share
from gateup.account.lora import module_name
from gateup.account.options import PlanOptions
from gateup.account.scenario import Scenario, Unmerged
from gateup.files.adapter import Adapter
from gateup.files.adapter_match import AdaptedModule


def adapter_figures(
    adapter: Adapter | None, adapted: tuple[AdaptedModule, ...]
) -> dict[str, Figure]:
    """The adapter folder that was opened, as its file stores it."""
    if adapter is None:
        return {}
    source = "the adapter's own tensor headers"
    mlp = sum(m.params for m in adapted if m.row.part == "mlp")
    n = f"Σ of {len(adapter.tensors)} tensors"
    return {
        "adapter.params": Figure(adapter.params, "params", "exact", n, "", source),
        "adapter.bytes": Figure(adapter.nbytes, "B", "exact", n, "", source),
        "adapter.mlp_share": share(mlp, adapter.params, "the adapter's parameters"),
    }


def continuing(
    options: PlanOptions, adapter: Adapter | None, adapted: tuple[AdaptedModule, ...]
) -> tuple[tuple[tuple[str, int, int], ...], PlanOptions]:
    """Training an adapter that was opened: its own modules and ranks, unless others were given.

    Returns what goes into LoRA.modules, and the options with the adapter's rank and targets.
    """
    if adapter is None or options.train not in ("lora", "qlora"):
        return (), options
    modules: tuple[tuple[str, int, int], ...] = ()
    if options.rank is None and options.targets is None:
        modules = tuple(
            (m.row.name, m.rank, m.params - m.rank * (m.row.experts or 1) * (m.inp + m.out))
            for m in adapted
        )
    leaves = sorted(
        {"experts" if m.row.experts else module_name(m.row).rpartition(".")[2] for m in adapted}
    )
    changes: dict[str, Any] = {}
    if options.rank is None:
        changes["rank"] = adapter.rank
    if options.targets is None and leaves:
        changes["targets"] = ",".join(leaves)
    return modules, replace(options, **changes)


def with_adapter(
    scenario: Scenario,
    adapter: Adapter | None,
    adapted: tuple[AdaptedModule, ...],
    modules: tuple[tuple[str, int, int], ...],
) -> Scenario:
    """The scenario with the adapter that was opened: trained on, or beside the model."""
    training = scenario.workload.training
    if adapter is None:
        return scenario
    if training is not None:
        lora = replace(training.lora, modules=modules)
        return scenario.with_(training=replace(training, lora=lora))
    params, nbytes = sum(m.params for m in adapted), _whole(adapter)[1]
    linear = (m for m in adapted if not m.row.experts and m.row.part != "embedding")
    sides = frozenset((m.inp, m.out) for m in linear)
    return replace(scenario, adapter=Unmerged(params, nbytes, sides))


def _whole(adapter: Adapter) -> tuple[int, int]:
    """(parameters, bytes) of the modules that the adapter stores whole."""
    whole = [t for t in adapter.tensors if ".lora_" not in t.name]
    return sum(prod(t.shape) for t in whole), sum(t.nbytes for t in whole)


def adapter_notes(
    adapter: Adapter | None, adapted: tuple[AdaptedModule, ...], options: PlanOptions
) -> tuple[str, ...]:
    if adapter is None:
        return ()
    name, (whole, _) = adapter.path.name, _whole(adapter)
    notes = []
    if options.train is None:
        used = sum(
            m.rank * m.out  # an embedding's A is looked up
            if m.row.part == "embedding"
            else m.rank * (m.row.active_experts or 1) * (m.inp + m.out)
            for m in adapted
        )
        notes.append(
            f"the adapter {name} (rank {adapter.rank}) is counted apart from the model's own "
            f"parameters and FLOPs: until it is merged it adds {2 * used:,} FLOPs a token"
        )
    elif options.train == "full":
        notes.append(f"full training: the adapter {name} is left out")
        return tuple(notes)
    else:
        notes.append(
            f"the adapter {name} is trained on: its own modules, of rank {adapter.rank}, unless "
            "--rank or --targets is given"
        )
    if whole and options.train is not None:
        notes.append(
            f"modules that the adapter {name} stores whole ({whole:,} parameters) are not counted "
            "as trained"
        )
    return tuple(notes)
