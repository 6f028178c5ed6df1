"""`plan` and `show` as JSON. docs/json-schema.md says what each path means.

The schema's number rises when a path changes its meaning or goes; new paths do not raise it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

from gateup import __version__
from gateup.account.figure import Figure
from gateup.account.fit import Remedy
from gateup.account.ledger import layer_label
from gateup.account.machine import Device
from gateup.account.measure import Measurements
from gateup.account.memory import MemoryPlan
from gateup.account.plan import Plan, phase_figure
from gateup.account.show import Shown
from gateup.account.workload import Workload
from gateup.files.adapter import Adapter
from gateup.files.checkpoint import Checkpoint
from gateup.model.spec import (
    AttentionSpec,
    ClassicFFNSpec,
    GatedMLPSpec,
    LayerSpec,
    ModelSpec,
    MoESpec,
)

PLAN_SCHEMA = "gateup.plan/1"
SHOW_SCHEMA = "gateup.show/1"


# Figures that stand in lists of their own.
ELSEWHERE = ("layers.", "measured.")


def schema(name: str = "plan") -> dict[str, Any]:
    """The JSON Schema of a document: "plan" or "show"."""
    text = files(__package__).joinpath(f"{name}.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def figure_json(figure: Figure) -> dict[str, Any]:
    """The six fields of a figure; one name per unit ("B" for bytes)."""
    return {
        "value": figure.value,
        "unit": "B" if figure.unit == "bytes" else figure.unit,
        "kind": figure.kind,
        "formula": figure.formula,
        "numbers": figure.numbers,
        "source": figure.source,
    }


def to_json(plan: Plan) -> dict[str, Any]:
    """The whole plan; every figure with its formula, numbers and source."""
    document: dict[str, Any] = {
        "schema": PLAN_SCHEMA,
        "generator": f"gateup {__version__}",
        "model": model_json(plan.checkpoint),
        "run": run_json(plan),
        **nested((k, v) for k, v in plan.figures.items() if not k.startswith(ELSEWHERE)),
    }
    document["bytes"]["by_type"] = {
        name: {"params": t.params, "bytes": t.nbytes} for name, t in plan.ledger.by_type().items()
    }
    document["layers"] = layers_json(plan)
    document["crossover"] = crossover_json(plan)
    document["memory"] = {**document["memory"], **memory_json(plan.memory)}
    document["device"] = device_json(plan)
    document["verdict"] = verdict_json(plan)
    document["measured"] = measured_json(plan.measured)
    for optional in ("file", "roofline", "adapter", "kv", "traffic", "intensity"):
        document.setdefault(optional, None)
    document["notes"] = list(plan.notes)
    return document


def nested(figures: Iterable[tuple[str, Figure]]) -> dict[str, Any]:
    """{"params.total": Figure} -> {"params": {"total": {...}}}."""
    out: dict[str, Any] = {}
    for path, figure in figures:
        *parents, last = path.split(".")
        place = out
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = figure_json(figure)
    return out


def model_json(checkpoint: Checkpoint) -> dict[str, Any]:
    """What was opened and what it is."""
    spec = checkpoint.spec
    return {
        "name": spec.name,
        "family": spec.family,
        "architecture": spec.architecture,
        "source": {
            "kind": checkpoint.kind,
            "path": None if checkpoint.path is None else str(checkpoint.path),
            "label": checkpoint.label,
            "file_bytes": checkpoint.file_nbytes,
        },
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.vocab_size,
        "num_layers": spec.num_layers,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "max_position_embeddings": spec.max_position_embeddings,
        "dtype": spec.dtype,
        "layer_kinds": [
            {"layers": layer_label(indices), "count": len(indices), **layer_json(layer)}
            for layer, indices in layer_kinds(spec)
        ],
    }


def layer_kinds(spec: ModelSpec) -> list[tuple[LayerSpec, tuple[int, ...]]]:
    """Layers with the same attention and MLP: (the first of them, their numbers)."""
    kinds: dict[object, list[LayerSpec]] = {}
    for layer in spec.layers:
        kinds.setdefault((layer.attention, layer.mlp), []).append(layer)
    return [(same[0], tuple(x.index for x in same)) for same in kinds.values()]


def layer_json(layer: LayerSpec) -> dict[str, Any]:
    attention, mlp = layer.attention, layer.mlp
    out: dict[str, Any] = {"attention": _attention(attention) if attention else None, "mlp": None}
    if isinstance(mlp, MoESpec):
        out["mlp"] = {
            "type": "moe",
            "num_experts": mlp.num_experts,
            "top_k": mlp.top_k,
            "intermediate_size": mlp.expert.intermediate_size,
            "shared_intermediate_size": mlp.shared.intermediate_size if mlp.shared else None,
            "act": mlp.expert.act,
            "layout": _layout(mlp.expert),
        }
    elif isinstance(mlp, GatedMLPSpec):
        out["mlp"] = {
            "type": "gated",
            "intermediate_size": mlp.intermediate_size,
            "act": mlp.act,
            "bias": mlp.bias,
            "layout": _layout(mlp),
        }
    elif isinstance(mlp, ClassicFFNSpec):
        out["mlp"] = {
            "type": "classic",
            "intermediate_size": mlp.intermediate_size,
            "act": mlp.act,
            "bias": mlp.bias,
        }
    return out


def _attention(attention: AttentionSpec) -> dict[str, Any]:
    mla = attention.mla
    return {
        "num_heads": attention.num_heads,
        "num_kv_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "v_head_dim": attention.v_head_dim,
        "window": attention.window,
        "mla": None
        if mla is None
        else {
            "kv_lora_rank": mla.kv_lora_rank,
            "q_lora_rank": mla.q_lora_rank,
            "qk_nope_head_dim": mla.qk_nope_head_dim,
            "qk_rope_head_dim": mla.qk_rope_head_dim,
        },
    }


def _layout(mlp: GatedMLPSpec) -> dict[str, Any]:
    layout = mlp.layout
    return {
        "form": layout.form,
        "order": layout.order,
        "orientation": layout.orientation,
        "stacked": layout.stacked,
    }


def run_json(plan: Plan) -> dict[str, Any]:
    """The run as decided: format, engine, context, split, training."""
    return {
        "format": plan.label,
        "quantised_to": plan.scenario.fmt,
        **workload_json(plan.workload),
        "gpu_layers": plan.scenario.gpu_layers,
        "cpu_moe_layers": plan.scenario.cpu_moe_layers,
    }


def workload_json(work: Workload) -> dict[str, Any]:
    training = work.training
    parallel = work.parallel
    return {
        "engine": work.engine,
        "ctx": work.ctx,
        "batch": work.batch,
        "compute_dtype": work.compute_dtype,
        "kv_type": work.kv_type,
        "ubatch": work.ubatch,
        "execution": work.execution,
        "tile": work.tile,
        "last_logits": work.last_logits,
        "flash": work.flash,
        "parallel": {
            "tp": parallel.tp,
            "pp": parallel.pp,
            "ep": parallel.ep,
            "fsdp": parallel.fsdp,
            "world": parallel.world,
        },
        "training": None
        if training is None
        else {
            "method": training.method,
            "rank": None if training.method == "full" else training.lora.rank,
            "alpha": training.lora.alpha,
            "targets": [] if training.method == "full" else list(training.lora.targets),
            "optimizer": training.optimizer,
            "save": training.save,
            "checkpointing": training.checkpointing,
            "autocast": training.autocast,
            "loss": training.loss,
            "accumulation": training.accumulation,
        },
    }


def layers_json(plan: Plan) -> list[dict[str, Any]]:
    """Each kind of layer with its sums by part and the MLP's share of each."""
    by_layer = plan.ledger.by_layer()
    out = []
    for label, indices in plan.ledger.layer_kinds().items():
        parts = by_layer.get(indices[0], {})
        start = f"layers.{label}."
        out.append(
            {
                "layers": label,
                "count": len(indices),
                "params": {p: t.params for p, t in parts.items()},
                "flops_per_token": {p: t.flops for p, t in parts.items()},
                "mlp_share": {
                    unit: figure_json(plan.figures[f"{start}{unit}.mlp_share"])
                    for unit in ("params", "bytes", "flops")
                },
            }
        )
    return out


def crossover_json(plan: Plan) -> dict[str, Any]:
    """T* of the model and of each kind of layer; null where attention never catches up."""

    def point(p: Any) -> dict[str, Any]:
        found = p.figures()
        return {
            "token": figure_json(found["token"]) if "token" in found else None,
            "prefill": figure_json(found["prefill"]) if "prefill" in found else None,
            "why": p.why,
        }

    both = plan.crossover
    return {
        **point(both.model),
        "layers": [{"layers": p.label, **point(p)} for p in both.layers],
    }


def memory_json(memory: MemoryPlan) -> dict[str, Any]:
    return {
        "peak_phase": memory.peak_phase,
        "peaks": {phase: figure_json(phase_figure(memory, phase)) for phase in memory.peaks},
        "stage": memory.stage,
        "items": [
            {
                "label": i.label,
                "group": i.group,
                "phases": list(i.phases),
                "bytes": figure_json(i.figure),
            }
            for i in memory.items
        ],
    }


def device_json(plan: Plan) -> dict[str, Any] | None:
    device: Device | None = plan.device
    if device is None:
        return None
    return {
        "name": device.name,
        "count": device.count,
        "kind": device.kind,
        "bandwidth": device.bandwidth,
        "flops": dict(device.flops),
        **{
            name: figure_json(plan.figures[f"device.{name}"])
            for name in ("memory", "reserve", "capacity")
        },
    }


def verdict_json(plan: Plan) -> dict[str, Any] | None:
    verdict = plan.verdict
    if verdict is None:
        return None
    return {
        "fits": verdict.fits,
        "phase": verdict.phase,
        "group": verdict.group,
        "peak": figure_json(plan.figures["memory.peak"]),
        "capacity": figure_json(plan.figures["device.capacity"]),
        "max_context": verdict.max_context,
        "held_context": verdict.held_context,
        "model_context": verdict.model_context,
        "flags": dict(verdict.flags),
        "smallest_peak": verdict.smallest,
        "remedies": [remedy_json(r) for r in verdict.remedies],
        "notes": list(verdict.notes),
    }


def remedy_json(remedy: Remedy) -> dict[str, Any]:
    memory = remedy.scenario.memory()
    return {
        "changes": list(remedy.changes),
        "peak": figure_json(phase_figure(memory, memory.peak_phase)),
        "phase": memory.peak_phase,
        "host_bytes": remedy.host,
        "loss": remedy.loss,
        "losses": list(remedy.losses),
        "flags": dict(remedy.flags),
        "command": remedy.command or None,
        "model": remedy.scenario.spec.name,
        "format": remedy.scenario.fmt,
        "run": workload_json(remedy.scenario.workload),
    }


def measured_json(measured: Measurements | None) -> dict[str, Any] | None:
    if measured is None:
        return None
    return {
        "rows": [
            {
                "key": r.key,
                "what": r.what,
                "predicted": None if r.predicted is None else figure_json(r.predicted),
                "observed": r.observed,
                "unit": r.unit,
                "error": r.error,
                "how": r.how,
            }
            for r in measured.rows
        ],
        "notes": list(measured.notes),
    }


def shown_to_json(shown: Shown) -> dict[str, Any]:
    """The description, the tensors and one layer's flow. Plain integers here are exact."""
    flow = shown.flow
    return {
        "schema": SHOW_SCHEMA,
        "generator": f"gateup {__version__}",
        "model": model_json(shown.checkpoint),
        "format": shown.label,
        "params": shown.ledger.total.params,
        "bytes": shown.ledger.total.nbytes,
        "file": {k.removeprefix("file."): int(f.value) for k, f in shown.file.items()} or None,
        "adapter": adapter_json(shown.checkpoint.adapter),
        "tensors": [
            {
                "name": row.name,
                "layer": row.layer,
                "part": row.part,
                "role": row.role,
                "shape": list(row.shape),
                "copies": row.copies,
                "type": row.type,
                "params": row.params,
                "bytes": row.nbytes,
            }
            for row in shown.ledger.rows
        ],
        "flow": {
            "layer": flow.layer,
            "batch": flow.batch,
            "seq": flow.seq,
            "dtype": flow.dtype,
            "steps": [
                {
                    "name": s.name,
                    "op": s.op,
                    "part": s.part,
                    "shape": list(s.shape),
                    "bytes": s.nbytes,
                    "params": s.params,
                    "weight_bytes": s.weight_nbytes,
                    "flops": s.flops,
                    "formula": s.formula,
                }
                for s in flow.steps
            ],
            "total": {
                "params": flow.params,
                "weight_bytes": flow.weight_nbytes,
                "gemm_flops": flow.gemm_flops,
                "attention_flops": flow.attention_flops,
                "flops": flow.flops,
            },
        },
        "notes": [*shown.notes],
    }


def adapter_json(adapter: Adapter | None) -> dict[str, Any] | None:
    """The adapter that was opened; null for a model of its own."""
    if adapter is None:
        return None
    targets = adapter.target_modules
    return {
        "base": adapter.base,
        "rank": adapter.rank,
        "alpha": adapter.alpha,
        "targets": list(targets) if isinstance(targets, tuple) else targets,
        "tensors": len(adapter.tensors),
        "params": adapter.params,
        "bytes": adapter.nbytes,
    }


def paths(document: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    """Every path of a document, "memory.items[].label" style: what the docs and tests list."""
    for key, value in document.items():
        path = f"{prefix}{key}"
        yield path
        if isinstance(value, Mapping):
            yield from paths(value, path + ".")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for item in value:
                yield from paths(item, path + "[].")
