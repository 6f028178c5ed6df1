"""What would make a scenario fit: combinations of changes, each with its peak and its flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateup.account import engines
from gateup.account.scenario import Scenario
from gateup.account.search import LOSSES, Found, Search, sensible
from gateup.account.training_axes import axes_of, free_options
from gateup.model import presets
from gateup.model.quant import mix

LIMIT = 8

# Losses of changes that are still offered where those that lose nothing suffice: devices have
# more speed to give, and so has a trace of quality; a shorter context or a lower rank has nothing.
_OFFERED = frozenset({"none", "tiny", "hardware"})


@dataclass(frozen=True)
class Remedy:
    """Changes that together make it fit, recomputed in full.

    changes  a sentence each
    peak     bytes on the fullest device, at `phase`
    flags    by engine ("llama.cpp", "vllm", "llama-factory", ...): what sets this run, whole;
             "llama-factory launch": how several cards are started, its settings in RUN.yaml;
             "llama-factory lacks": the part of the run that it has no setting for, in words
    loss     the worst of the changes' losses: "none", "tiny", "some", "hardware", "capability"
    losses   each change's own
    host     bytes that llama.cpp keeps in host memory besides
    command  `gateup plan …` of the run, whole; "" where there is none, and `unsaid` says why
    """

    changes: tuple[str, ...]
    scenario: Scenario
    peak: int
    flags: Mapping[str, str]
    loss: str
    phase: str = ""
    host: int = 0
    command: str = ""
    unsaid: str = ""
    losses: tuple[str, ...] = ()

    @property
    def prices(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """(loss, the changes that cost it), the least first; of a single change, its loss alone."""
        if len(self.losses) < 2 or set(self.losses) == {"none"}:
            return ((self.loss, ()),)
        each = list(zip(self.losses, self.changes, strict=True))
        lost = [x for x in LOSSES[1:] if x in self.losses]
        return tuple((x, tuple(change for loss, change in each if loss == x)) for x in lost)

    @property
    def elsewhere(self) -> dict[str, str]:
        """The flags to print beside the command, which says gateup's own."""
        return {k: v for k, v in self.flags.items() if not (self.command and k == "gateup")}


def find_remedies(
    scenario: Scenario, capacity: int, limit: int = LIMIT
) -> tuple[tuple[Remedy, ...], int]:
    """(remedies, the cheapest first; the smallest peak seen). The scenario does not fit."""
    axes = axes_of(scenario)
    free = free_options(scenario)
    start = scenario
    for option in free:
        start = option.apply(start)
    if not free or start.memory().peak <= capacity:
        if free:  # nothing that a user would miss need be given up
            axes = [a for a in axes if all(LOSSES[o.loss] in _OFFERED for o in a.options)]
        search = Search(scenario, capacity, axes)
        return tuple(_remedy(scenario, f) for f in search.run(limit)), search.smallest
    search = Search(start, capacity, axes_of(start))
    search.run(limit)
    _less_trained(search)
    found = search.chosen(limit)
    labels = tuple(o.label for o in free)
    return tuple(_remedy(scenario, f, labels) for f in found), search.smallest


def _less_trained(search: Search) -> None:
    """Add what fits once full training is given up for QLoRA.

    Its own search: what an adapter's training holds is in none of full training's groups, so that
    no factor foretells what a shorter context, say, does to it.
    """
    method = next((a for a in search.axes if a.name == "method"), None)
    if method is None or any(len(f.choice) == 1 and f.choice[0][0] is method for f in search.found):
        return
    option = method.options[-1]
    start = option.apply(search.scenario)
    axes = [a for a in axes_of(start) if not a.alone]
    inner = Search(start, search.capacity, axes)
    inner.run(LIMIT)
    search.smallest = min(search.smallest, inner.smallest)
    for found in inner.found:
        options = [option, *(o for _, o in found.choice)]
        if sensible(options):
            choice = ((method, option), *found.choice)
            search.found.append(Found(choice, found.scenario, found.plan))


def _remedy(before: Scenario, found: Found, first: tuple[str, ...] = ()) -> Remedy:
    return Remedy(
        changes=(*first, *(o.label for _, o in found.choice)),
        scenario=found.scenario,
        peak=found.plan.peak,
        flags=flags_of(before, found.scenario),
        loss=LOSSES[max((o.loss for _, o in found.choice), default=0)],
        phase=found.plan.peak_phase,
        host=int(found.scenario.host().value),
        losses=(*(LOSSES[0] for _ in first), *(LOSSES[o.loss] for _, o in found.choice)),
    )


def flags_of(before: Scenario, after: Scenario, whole: bool = False) -> dict[str, str]:
    """By engine, the flags of the run `after`; weights are named where their format changed, or
    with `whole`. Nothing for a run that the engine cannot do.
    """
    engine = "llama-factory" if after.workload.training is not None else after.workload.engine
    options = {"llama.cpp": _llamacpp, "vllm": _vllm, "llama-factory": _factory}.get(engine)
    out: dict[str, str] = {}
    if options is not None:
        wanted = options(before, after)
        if whole and engine != "llama-factory":
            wanted = {**_stored(after), **wanted}
        kept = {k: v for k, v in wanted.items() if engines.supports(engine, k, v)}
        flags = engines.flags(engine, **kept) if wanted else ""
        flags = flags if after.spec is before.spec else _named(engine, flags, after)
        out[engine] = flags if wanted else ""
        out[f"{engine} launch"] = _launch(wanted, after)
        if wanted and engine == "llama-factory":
            out[f"{engine} lacks"] = _own_parts(after)
    elif engine == "transformers":
        out[engine] = _transformers(before, after)
    ours = _gateup(before, after)
    if ours:
        out["gateup"] = ours
    return {k: v for k, v in out.items() if v}


def _named(engine: str, flags: str, after: Scenario) -> str:
    """The flags with the model in them, where it is another one."""
    preset = presets.find(after.spec.name)
    hub = preset.hub_id if preset else after.spec.name
    if engine == "vllm":
        return flags.replace("MODEL-", f"{hub}-") if "MODEL-" in flags else f"{hub} {flags}"
    if engine == "llama-factory":
        return f"model_name_or_path={hub} {flags}"
    return flags.replace("MODEL-", f"{after.spec.name}-")


def _quant(before: Scenario, after: Scenario) -> dict[str, Any]:
    same = after.fmt == before.fmt and after.spec is before.spec
    return {} if same or not after.fmt else {"quant": after.fmt}


def _stored(s: Scenario) -> dict[str, Any]:
    """The weights a whole command line names: a GGUF's file, or the dtype."""
    return {"quant": s.fmt} if s.fmt and mix.kind_of(s.fmt) != "hf" else {}


def _launch(wanted: Mapping[str, Any], after: Scenario) -> str:
    if "sharding" not in wanted:
        return ""
    ranks = after.workload.parallel.fsdp
    return engines.launch_factory(ranks, wanted["sharding"], wanted["precision"])


def _llamacpp(before: Scenario, after: Scenario) -> dict[str, Any]:
    work, out = after.workload, _quant(before, after)
    out |= {"ctx": work.ctx}
    if work.batch > 1:
        out["batch"] = work.batch
    if work.ubatch != before.workload.ubatch or work.ubatch != 512:
        out["ubatch"] = work.ubatch
    if work.kv_type != "f16":  # the default
        out["kv_type"] = work.kv_type
    if not work.flash:  # the default is to decide by the device
        out["flash"] = False
    if after.splits_host:
        layers = after.spec.num_layers + 1
        out["gpu_layers"] = layers if after.gpu_layers is None else after.gpu_layers
        if after.cpu_moe_layers:
            out["cpu_moe_layers"] = after.cpu_moe_layers
    if work.parallel.pp > 1:
        out["pp"] = work.parallel.pp
    return out


def _vllm(before: Scenario, after: Scenario) -> dict[str, Any]:
    work, out = after.workload, _quant(before, after)
    out |= {"ctx": work.ctx, "batch": work.batch, "ubatch": work.ubatch}
    if work.kv_type not in ("f16", "bf16"):  # the default is the model's dtype
        out["kv_type"] = work.kv_type
    out |= {k: n for k in ("tp", "pp", "ep") if (n := getattr(work.parallel, k)) > 1}
    if after.device is not None:
        hundredths = after.device.capacity("vllm") * 100 // after.device.memory
        out["memory_share"] = f"{hundredths / 100:.2f}"
    return out


def _precision(after: Scenario) -> str | None:
    """LLaMA-Factory's precision for the run; None: it cannot keep the weights so."""
    training, compute = after.workload.training, after.workload.compute_dtype
    assert training is not None
    if training.method != "full":
        return compute
    weights = after.fmt or next((t.type for t in after.stored if t.row and t.row.matmul), "")
    if training.autocast:
        return compute if weights == "f32" else None
    return {"bf16": "pure_bf16", "f32": "f32"}.get(weights)


def _factory(before: Scenario, after: Scenario) -> dict[str, Any]:
    """Empty where LLaMA-Factory cannot do the run: f16 weights trained whole, a split by tensor
    or stage. What only gateup's MLP does is left out (`_own_parts`).
    """
    work, training, precision = after.workload, after.workload.training, _precision(after)
    assert training is not None
    parallel = work.parallel
    if precision is None or parallel.world != parallel.fsdp:
        return {}
    out: dict[str, Any] = {"quant": after.fmt} if after.fmt else {}
    if not engines.supports("llama-factory", "quant", after.fmt or "bf16"):
        return {}
    if parallel.fsdp > 1:
        quantised = training.method == "qlora" or (after.fmt or "").startswith(("nf4", "int8"))
        if after.fmt == "int8":  # neither ZeRO-3 nor FSDP takes it
            return {}
        plain = training.method == "lora" and not quantised
        out["sharding"] = "zero3" if plain else "fsdp"
    out |= {"precision": precision, "ctx": work.ctx, "batch": work.batch}
    if training.accumulation > 1:
        out["accumulation"] = training.accumulation
    out["method"] = training.method
    if training.method != "full":
        out |= {"rank": training.lora.rank, "targets": training.lora.targets}
    out |= {"optimizer": training.optimizer, "checkpointing": training.checkpointing}
    if training.save == "all" or training.loss == "chunked":
        out["execution"] = "fused"
    return out


def _own_parts(after: Scenario) -> str:
    """What of a training run only gateup's own MLP does; empty: nothing."""
    work, training = after.workload, after.workload.training
    said, given = [], []
    if work.execution == "tiled":
        said.append(f"MLP in tiles of {work.tile:,} tokens")
        given.append(f"tile={work.tile}")
    if training is not None and training.save in ("gate_up", "input"):
        kept = {"gate_up": "x, gate and up", "input": "x"}[training.save]
        said.append(f"an MLP that keeps {kept} only")
        given.append(f'save="{training.save}"')
    if not said:
        return ""
    own = f"gateup's own, gateup.patch(model, options=MLPOptions({', '.join(given)}))"
    return f"{' and '.join(said)} ({own}); the peak counts on it"


def _gateup(before: Scenario, after: Scenario) -> str:
    """gateup's own options: all of a run on its engine, else what is its own (tiles, and saving
    less for backward than act⊙up fused does).
    """
    out, work = [], after.workload
    if work.engine == "gateup":
        if after.fmt != before.fmt:
            out.append(f"--quant {after.fmt}")
        out.append(f"--ctx {work.ctx} --batch {work.batch}")
        out += [f"--{k} {n}" for k in ("tp", "pp") if (n := getattr(work.parallel, k)) > 1]
    was_tiled = (before.workload.execution, before.workload.tile) == ("tiled", work.tile)
    if work.execution == "tiled" and (work.engine == "gateup" or not was_tiled):
        out.append(f"--exec tiled --tile {work.tile}")
    save = work.training.save if work.training else None
    was = before.workload.training.save if before.workload.training else None
    if save in ("gate_up", "input") and save != was:
        out.append(f"--save {save}")
    return " ".join(out)


def _transformers(before: Scenario, after: Scenario) -> str:
    """Keyword arguments: transformers has no command line."""
    out = []
    load = {"int8": "load_in_8bit=True", "nf4": "load_in_4bit=True, bnb_4bit_quant_type='nf4'"}
    if after.fmt != before.fmt and after.fmt in load:
        out.append(f"quantization_config=BitsAndBytesConfig({load[after.fmt]})")
    if after.workload.parallel.pp > 1:
        out.append("device_map='auto'")
    if after.workload.parallel.tp > 1:
        out.append("tp_plan='auto'")
    if after.workload.ctx != before.workload.ctx:
        out.append(f"max_length={after.workload.ctx}")
    return " ".join(out)
