"""A model laid open: its description, its tensors, and the shapes that flow through one layer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gateup.account.flow import LayerFlow, layer_flow
from gateup.account.ledger import Ledger, LedgerPart, LedgerRow, layer_label, make_ledger
from gateup.account.options import PlanOptions
from gateup.account.plan import choose_format, compute_dtype
from gateup.account.scenario import stored_in
from gateup.errors import UsageError
from gateup.files.checkpoint import Checkpoint, open_model
from gateup.model.spec import ModelSpec

MAX_TOKENS = 1 << 40
NUMBERED_EXPERT = re.compile(r"\bexperts\.\d+\.")


@dataclass(frozen=True, slots=True)
class ShowOptions:
    """batch sequences of seq tokens through layer (None: the first); weights in quant (or as
    they are). Raises UsageError for a batch or length that no run could have.
    """

    batch: int = 1
    seq: int = 2048
    layer: int | None = None
    quant: str | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "seq"):
            value = getattr(self, name)
            if not 1 <= value <= MAX_TOKENS:
                raise UsageError(
                    f"--{name} is {value}", expected=f"a whole number from 1 to {MAX_TOKENS}"
                )


@dataclass(frozen=True)
class Shown:
    """The answer of `show`."""

    checkpoint: Checkpoint
    label: str
    ledger: Ledger
    flow: LayerFlow
    notes: tuple[str, ...]

    @property
    def spec(self) -> ModelSpec:
        return self.checkpoint.spec


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Like tensors of several layers: the same role, shape and storage type.

    name    with {i} for the layer and {e} for the expert
    layers  numbers as layer_label writes them ("0-31"); "" outside the layers
    count   tensors in the group
    """

    name: str
    part: LedgerPart
    shape: tuple[int, ...]
    type: str
    layers: str
    count: int
    params: int
    nbytes: int


def show(ref: str | Path, options: ShowOptions | None = None) -> Shown:
    """What `ref` is, down to its tensors, and one layer's flow. No weights are read.

    Raises GateupError: UsageError for a layer or format there is not, InputError for what cannot
    be read.
    """
    options = options or ShowOptions()
    checkpoint = open_model(ref)
    spec = checkpoint.spec
    notes: list[str] = []
    fmt, label = choose_format(checkpoint, PlanOptions(quant=options.quant), notes)
    stored = checkpoint.stored if fmt is None else None
    if stored is None:
        stored = stored_in(spec, fmt or "bf16")
    flow = layer_flow(
        spec,
        options.layer if options.layer is not None else first_whole_layer(spec),
        stored,
        batch=options.batch,
        seq=options.seq,
        dtype=compute_dtype(spec),
    )
    ledger = make_ledger(spec, stored, label)
    return Shown(checkpoint, label, ledger, flow, (*notes, *spec.notes, *checkpoint.problems))


def first_whole_layer(spec: ModelSpec) -> int:
    """The first layer that has both attention and an MLP; 0 where none has."""
    return next((x.index for x in spec.layers if x.attention and x.mlp), 0)


def tensor_groups(ledger: Ledger) -> list[TensorGroup]:
    """The ledger's rows, with like tensors of different layers (and experts) in one line."""
    groups: dict[tuple[str, tuple[int, ...], str], list[LedgerRow]] = {}
    order: dict[str, int] = {}
    for row in ledger.rows:
        name = pattern(row)
        order.setdefault(name, len(order))
        groups.setdefault((name, row.shape, row.type), []).append(row)
    return [
        TensorGroup(
            name,
            rows[0].part,
            shape,
            type_,
            layer_label({r.layer for r in rows if r.layer is not None}),
            sum(r.copies for r in rows),
            sum(r.params for r in rows),
            sum(r.nbytes for r in rows),
        )
        for (name, shape, type_), rows in sorted(groups.items(), key=lambda g: order[g[0][0]])
    ]


def pattern(row: LedgerRow) -> str:
    """The tensor's name with {i} for its layer and {e} for its expert."""
    name = row.name
    if row.layer is not None:
        name = name.replace(f".{row.layer}.", ".{i}.", 1)
    return NUMBERED_EXPERT.sub("experts.{e}.", name)
