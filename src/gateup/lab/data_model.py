"""Where a model's parameters, bytes and FLOPs go, and what a changed width changes: the Model page.

Everything is the library's: the ledger of the model as it is and of the model rebuilt from its
config with other widths, and the findings of `gateup check` on the latter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateup.account.compatible import tensor_parallel_degrees
from gateup.account.figure import Figure
from gateup.account.flops import decode_flops
from gateup.account.ledger import LEDGER_PARTS, Ledger, LedgerPart, Totals, make_ledger
from gateup.account.options import PlanOptions
from gateup.account.plan import choose_format
from gateup.account.scenario import stored_in
from gateup.checks.finding import Finding
from gateup.checks.inputs import Request, read_context
from gateup.checks.padding import DENSE, EXPERT, config_key, widths
from gateup.checks.runner import RULES, run_rules
from gateup.files.checkpoint import Checkpoint
from gateup.lab.errors import LabError
from gateup.model.families import build_spec
from gateup.model.quant.mix import is_known
from gateup.model.spec import ModelSpec

FORMATS = ("", "bf16", "q8_0", "q6_k", "q4_k_m", "q3_k_m", "nf4", "awq:128", "fp8:128")
TP = (1, 2, 4, 8, 16)
FIGURES = (
    "params.total",
    "params.active",
    "params.mlp",
    "params.mlp_share",
    "params.non_embedding",
    "bytes.total",
    "bytes.mlp",
    "bytes.mlp_share",
    "bytes.bits_per_param",
    "flops.total",
    "flops.mlp",
    "flops.mlp_share",
)
# What a changed width can break; the other rules are about files, adapters and trainers.
_RULES = ("quant.", "split.", "config.")
# Keys of config.json that may hold the hidden size.
_HIDDEN = ("hidden_size", "n_embd", "model_dim")


@dataclass(frozen=True, slots=True)
class Width:
    """A width that can be dragged: where config.json has it, its value, and how far it goes."""

    key: str
    value: int
    low: int
    high: int
    step: int


def hidden_width(spec: ModelSpec) -> Width | None:
    """hidden_size; None where the config has no single number for it."""
    key = next((k for k in _HIDDEN if _inner(spec.config).get(k) == spec.hidden_size), None)
    return _range(key, spec.hidden_size, 64) if key else None


def mlp_width(spec: ModelSpec) -> Width | None:
    """The width of the dense MLP, or of one expert; None where layers have widths of their own."""
    found = [(what, value) for what, value in widths(spec) if what in (DENSE, EXPERT)]
    for what in (EXPERT, DENSE):
        values = [value for name, value in found if name == what]
        inner = _inner(spec.config)
        key = config_key(replace(spec, config=inner), what)
        if len(values) == 1 and inner.get(key) == values[0]:
            return _range(key, values[0], 32)
    return None


def _range(key: str, value: int, step: int) -> Width:
    down = value // 2 // step * step  # whole steps, so that the value itself is one of them
    return Width(key, value, value - down, value + 2 * down, step)


def _inner(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of the config that describes the text model."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def edited(checkpoint: Checkpoint, hidden: int, width: int) -> Checkpoint:
    """The model its config would describe with other widths (0: as it is), without its files.

    Raises LabError for widths that no such model has (heads that do not divide hidden_size).
    """
    spec = checkpoint.spec
    changes: dict[str, int] = {}
    for found, value in ((hidden_width(spec), hidden), (mlp_width(spec), width)):
        if found and value and value != found.value:
            changes[found.key] = value
    if not changes:
        return checkpoint
    heads = _inner(spec.config).get("num_attention_heads")
    given = _inner(spec.config).get("head_dim")
    if hidden and not given and isinstance(heads, int) and hidden % heads:
        low, high = hidden // heads * heads, -(-hidden // heads) * heads
        raise LabError("model", "error.heads", hidden=hidden, heads=heads, low=low, high=high)
    config: dict[str, Any] = dict(spec.config)
    if isinstance(config.get("text_config"), Mapping):
        config["text_config"] = {**config["text_config"], **changes}
    else:
        config |= changes
    changed = build_spec(config, where="the changed config", name=spec.name)
    return replace(
        checkpoint,
        spec=changed,
        kind="config",
        path=None,
        headers=(),
        stored=None,
        file_nbytes=None,
        mismatches=(),
    )


def ledger_of(checkpoint: Checkpoint, quant: str) -> tuple[Ledger, str | None]:
    """(the ledger, its format); quant "": as its files store it, or its config declares.

    Raises UsageError for a format the model cannot be stored in.
    """
    notes: list[str] = []
    fmt, label = choose_format(checkpoint, PlanOptions(quant=quant or None), notes)
    stored = checkpoint.stored if fmt is None else None
    if stored is None:
        if fmt is None:
            first = checkpoint.label.split()[0].lower()
            fmt = first if is_known(first) else "bf16"
        stored = stored_in(checkpoint.spec, fmt)
    return make_ledger(checkpoint.spec, stored, label), fmt


@dataclass(frozen=True, slots=True)
class PartRow:
    """One part of the model: of all of it, and of one layer of the commonest kind."""

    part: LedgerPart
    model: Totals
    layer: Totals


@dataclass(frozen=True)
class ModelView:
    """What the page shows of one model.

    figures  by JSON path, as `gateup plan --json` has them
    parts    every part that occurs
    layer    which layers `parts` calls "one layer" ("0-31")
    decode   FLOPs of one token at `ctx`, by part, attention scores included
    """

    spec: ModelSpec
    label: str
    figures: Mapping[str, Figure]
    parts: tuple[PartRow, ...]
    layer: str
    decode: Mapping[str, int]
    ctx: int


def view(checkpoint: Checkpoint, quant: str, ctx: int) -> ModelView:
    """The model as it is stored in `quant`. Raises UsageError where it cannot be."""
    ledger, _ = ledger_of(checkpoint, quant)
    spec, by_part, by_layer = checkpoint.spec, ledger.by_part(), ledger.by_layer()
    kinds = ledger.layer_kinds()
    label = max(kinds, key=lambda k: len(kinds[k]), default="")
    one = by_layer.get(kinds[label][0], {}) if label else {}
    figures = ledger.figures()
    token = decode_flops(spec, ctx)
    decode: dict[str, int] = {p: v for p, v in token.gemm.items() if v}
    decode["attention"] = decode.get("attention", 0) + token.attention
    return ModelView(
        spec,
        ledger.label,
        {k: figures[k] for k in FIGURES if k in figures},
        tuple(
            PartRow(p, by_part[p], one.get(p, Totals())) for p in LEDGER_PARTS if _any(by_part[p])
        ),
        label,
        decode,
        ctx,
    )


def _any(totals: Totals) -> bool:
    return bool(totals.params or totals.nbytes or totals.flops)


@dataclass(frozen=True, slots=True)
class ShapeChange:
    """Tensors of one role whose shape a changed width changes."""

    role: str
    count: int
    before: tuple[int, ...]
    after: tuple[int, ...]


def shape_changes(before: ModelSpec, after: ModelSpec) -> tuple[ShapeChange, ...]:
    """Every role whose tensors change, with how many tensors that is."""
    new = {r.name: r.shape for r in after.rows}
    groups: dict[tuple[str, tuple[int, ...], tuple[int, ...]], int] = {}
    for row in before.rows:
        shape = new.get(row.name)
        if shape is not None and shape != row.shape:
            key = (row.role, row.shape, shape)
            groups[key] = groups.get(key, 0) + row.copies
    return tuple(ShapeChange(role, n, old, now) for (role, old, now), n in groups.items())


@dataclass(frozen=True)
class Consequences:
    """What the widths mean for splitting and storing.

    degrees   tensor-parallel degrees from 2 to 16 that heads and widths allow
    kv_heads  where a degree is above it: the fewest KV heads of a layer, held more than once then
    ratio     I / H of the dense MLP or of one expert; None where there is no single one
    divides   width's name -> (width, the largest of 256, 128, 64, 32, … that divides it)
    findings  of `gateup check --tp --quant`, worst first
    """

    degrees: tuple[int, ...]
    kv_heads: int | None
    ratio: float | None
    divides: Mapping[str, tuple[int, int]]
    findings: tuple[Finding, ...]


def consequences(checkpoint: Checkpoint, quant: str, tp: int) -> Consequences:
    """What follows from the widths of `checkpoint`, stored in `quant` and split over `tp` ranks."""
    spec = checkpoint.spec
    request = Request(tp=tp if tp > 1 else None, quant=quant or None)
    rules = [r for r in RULES if r.id.startswith(_RULES)]
    report = run_rules(read_context(checkpoint, request), rules)
    sizes = {"hidden_size": spec.hidden_size, **dict(widths(spec))}
    width = mlp_width(spec)
    degrees = tuple(tensor_parallel_degrees(spec))
    attentions = [x.attention for x in spec.layers if x.attention is not None]
    # What latent attention caches has no heads: every rank holds the whole of it.
    fewest = min((a.num_kv_heads for a in attentions if a.mla is None), default=None)
    return Consequences(
        degrees,
        fewest if fewest is not None and max(degrees, default=0) > fewest else None,
        width.value / spec.hidden_size if width else None,
        {name: (n, _power(n)) for name, n in sizes.items()},
        report.findings,
    )


def _power(n: int) -> int:
    """The largest power of two, up to 256, that divides n."""
    return min(n & -n, 256)
