"""Every tensor of a model's files read once, a few rows at a time.

Letters: H hidden_size, I intermediate_size, E experts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch

from gateup.checks.measured import NotFinite, QuietRows, SecondHead, WeightScan
from gateup.engine.loading import Progress
from gateup.files.checkpoint import Checkpoint
from gateup.files.header import TensorHeader
from gateup.files.tensors import TensorFiles
from gateup.model.layout import GateUpLayout, split
from gateup.model.quant.formats import FORMATS, row_nbytes
from gateup.model.spec import GatedMLPSpec, ModelSpec, MoESpec, TensorSpec
from gateup.ops import unpack

# Elements taken apart at once: 16 MB in float32.
STEP = 1 << 22
# A neuron's weights are next to nothing below this share of the median neuron's largest weight.
# The smallest of SmolLM2's, in any layer, has 0.48.
QUIET = 1e-3

_FLOAT8 = {
    "f8_e4m3": torch.float8_e4m3fn,
    "f8_e5m2": torch.float8_e5m2,
    "f8_e4m3fnuz": torch.float8_e4m3fnuz,
    "f8_e5m2fnuz": torch.float8_e5m2fnuz,
}


def scan(
    checkpoint: Checkpoint,
    files: TensorFiles,
    progress: Progress | None = None,
    extra: Sequence[TensorHeader] = (),
) -> WeightScan:
    """Read every tensor of floating point or in blocks, also `extra` (an adapter's).

    Raises InputError, TruncatedError where a file can no longer be read.
    """
    rows = {r.name: r for r in checkpoint.spec.rows}
    for r in checkpoint.spec.rows:
        if r.copies > 1:
            rows.update(dict.fromkeys(r.names(), r))
    headers = sorted({h.file: None for h in checkpoint.headers})
    order = {f: i for i, f in enumerate(headers)}
    todo = sorted(checkpoint.headers, key=lambda h: (order[h.file], h.offset)) + list(extra)
    total, done, read = sum(h.nbytes for h in todo), 0, 0
    bad: list[NotFinite] = []
    quiet = _Quiet(checkpoint.spec)
    for header in todo:
        if readable(header):
            seen = _Seen(header, quiet.place(header, rows))
            for at, values in _parts(header, files):
                seen.take(at, values)
            read += 1
            bad += seen.not_finite()
            quiet.take(seen)
        done += header.nbytes
        if progress is not None:
            progress(done, total)
    return WeightScan(read, tuple(bad), tuple(quiet.found()), _second_head(checkpoint, files))


def _second_head(checkpoint: Checkpoint, files: TensorFiles) -> SecondHead | None:
    """The head that the config says is the embedding, compared with it; None without one, or where
    the two cannot be compared."""
    heads = [t for m in checkpoint.mismatches if m.kind == "head" for t in m.tensors]
    rows = {r.name for r in checkpoint.spec.rows if r.role == "embed_tokens"}
    tables = [h for h in checkpoint.headers if h.canonical in rows]
    if len(heads) != 1 or len(tables) != 1 or heads[0].shape != tables[0].shape:
        return None
    if not (readable(heads[0]) and readable(tables[0])):
        return None
    unequal, largest = 0, 0.0
    for (_, a), (_, b) in zip(_parts(heads[0], files), _parts(tables[0], files), strict=True):
        apart = (a != b).any(1)
        unequal += int(apart.sum())
        if bool(apart.any()):
            top = float((a - b).abs().max())
            largest = top if not top <= largest else largest  # NaN counts as larger
    return SecondHead(heads[0].name, heads[0].shape[0], unequal, largest)


def readable(header: TensorHeader) -> bool:
    """Whether the tensor has numbers that could be none: integers and packed codes have not."""
    known = unpack.known(header.type) or header.type in _FLOAT8
    width = header.shape[-1] if header.shape else 1
    return known and prod(header.shape) > 0 and width % FORMATS[header.type].block_size == 0


def _parts(header: TensorHeader, files: TensorFiles) -> Iterator[tuple[int, torch.Tensor]]:
    """(first row, values [n, width]) of the tensor as a matrix, its pages given back behind."""
    width = header.shape[-1] if header.shape else 1
    count = prod(header.shape[:-1])
    nbytes = row_nbytes(FORMATS[header.type], width)
    step = max(1, STEP // width)
    for at in range(0, count, step):
        n = min(step, count - at)
        part = header._replace(offset=header.offset + at * nbytes, nbytes=n * nbytes)
        raw = torch.from_numpy(np.array(files.raw(part))).view(n, nbytes)
        if header.type in _FLOAT8:
            values = raw.view(_FLOAT8[header.type]).to(torch.float32)
        else:
            values = unpack.unpack(header.type, raw)
        yield at, values
        files.release(part)


@dataclass(frozen=True, slots=True)
class _Place:
    """An MLP matrix. in_out: stored [in, out]; parts: "gate", "up" or "down" of it."""

    layer: int
    parts: tuple[str, ...]
    layout: GateUpLayout
    in_out: bool


class _Seen:
    """What has been seen of one tensor: values that are no numbers, the largest of each neuron."""

    def __init__(self, header: TensorHeader, place: _Place | None) -> None:
        self.header = header
        self.place = place
        self.nans = self.infinities = 0
        self.first: tuple[int, ...] | None = None
        shape = header.shape
        self.inner = shape[-2] if len(shape) > 1 else 1
        stacks = prod(shape[:-2]) if len(shape) > 2 else 1
        # Neurons lie along rows of gate and up, columns of down; the other way round in [in, out].
        self.by_row = place is not None and (place.parts != ("down",)) != place.in_out
        length = self.inner if self.by_row else (shape[-1] if shape else 1)
        self.largest = torch.zeros(stacks, length) if place is not None else None

    def take(self, at: int, values: torch.Tensor) -> None:
        """Rows from `at` on."""
        finite = torch.isfinite(values)
        if not bool(finite.all()):
            nans = int(torch.isnan(values).sum())
            self.nans += nans
            self.infinities += int((~finite).sum()) - nans
            if self.first is None:
                row, column = torch.nonzero(~finite)[0].tolist()
                self.first = _index(self.header.shape, (at + row) * values.shape[1] + column)
        if self.largest is None:
            return
        if self.by_row:
            flat = self.largest.view(-1)
            flat[at : at + values.shape[0]] = values.abs().amax(1)
            return
        for start, part in _stacks(at, values, self.inner):
            row = self.largest[start]
            torch.maximum(row, part.abs().amax(0), out=row)

    def not_finite(self) -> Iterable[NotFinite]:
        if self.first is not None:
            yield NotFinite(self.header.name, self.nans, self.infinities, self.first)


def _index(shape: tuple[int, ...], flat: int) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape)) if shape else ()


def _stacks(at: int, values: torch.Tensor, inner: int) -> Iterator[tuple[int, torch.Tensor]]:
    """(expert, its rows) of rows that may run over several stacked matrices of `inner` rows."""
    start = 0
    while start < values.shape[0]:
        expert, row = divmod(at + start, inner)
        end = min(values.shape[0], start + inner - row)
        yield expert, values[start:end]
        start = end


@dataclass(slots=True)
class _Count:
    quiet: int = 0
    zero: int = 0
    of: int = 0
    name: str = ""


@dataclass
class _Quiet:
    """Neurons with next to no weights, by layer and matrix."""

    spec: ModelSpec
    counts: dict[tuple[int, str], _Count] = field(default_factory=dict)

    def place(self, header: TensorHeader, rows: dict[str, TensorSpec]) -> _Place | None:
        """None for tensors that are no matrix of a gated MLP."""
        row = rows.get(header.canonical or "")
        if row is None or row.layer is None or row.part != "mlp" or len(header.shape) < 2:
            return None
        mlp = self.spec.layers[row.layer].mlp
        if not isinstance(mlp, GatedMLPSpec | MoESpec) or not unpack.known(header.type):
            return None
        known = {"gate_proj": ("gate",), "up_proj": ("up",), "down_proj": ("down",)}
        stem = row.role.rpartition(".")[2]
        parts = ("gate", "up") if stem == "gate_up_proj" else known.get(stem)
        if parts is None or not row.matmul or len(row.shape) < 2:
            return None
        expert = row.role.startswith("experts.")
        layout = mlp.expert.layout if isinstance(mlp, MoESpec) and expert else GateUpLayout()
        if isinstance(mlp, GatedMLPSpec):
            layout = mlp.layout
        # A GGUF has every matrix [out, in], and gate and up apart.
        turned = layout.orientation == "in_out" and header.shape[-2:] == row.shape[-2:]
        return _Place(row.layer, parts, layout, turned)

    def take(self, seen: _Seen) -> None:
        place, largest = seen.place, seen.largest
        if place is None or largest is None:
            return
        for part, values in _halves(place, largest):
            median = float(values.median())
            limit = QUIET * (median if median > 0 else float(values.max()))
            count = self.counts.setdefault((place.layer, part), _Count(name=seen.header.name))
            count.quiet += int((values <= limit).sum())
            count.zero += int((values == 0).sum())
            count.of += values.numel()

    def found(self) -> Iterator[QuietRows]:
        for (layer, part), c in sorted(self.counts.items()):
            if c.quiet:
                yield QuietRows(layer, part, c.quiet, c.zero, c.of, c.name)


def _halves(place: _Place, largest: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """("gate", largest weight of each of its neurons [E, I]), …"""
    if len(place.parts) == 1:
        yield place.parts[0], largest
        return
    if largest.shape[1] % 2:
        return  # no pair; the shape is config.shape's to report
    flat = GateUpLayout(form=place.layout.form, order=place.layout.order, stacked=True)
    gate, up = split(largest, flat, "bias")
    yield "gate", gate
    yield "up", up
