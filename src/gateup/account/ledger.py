"""Where a model's parameters, bytes and FLOPs go: one row per stored tensor; rows sum to totals.

FLOPs here are per token and of matrix products only, a multiply-add counting 2: norms,
activations, rotary embeddings, softmax and the gate's product are left out (about H or I operations
each where a matrix has H·I). Attention scores depend on the context: see flops.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from gateup.account.figure import Figure
from gateup.account.terms import Sum, part_terms
from gateup.model.quant.formats import FORMATS, StoredTensor
from gateup.model.spec import PARTS, ModelSpec, Part

LedgerPart = Literal["embedding", "attention", "mlp", "norm", "head", "other"]
LEDGER_PARTS: tuple[LedgerPart, ...] = (*PARTS, "other")

SHAPES = "shapes of config.json, checked against transformers' own classes"


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One stored tensor, or a group of `copies` like ones.

    part           "other" for what is stored and belongs to no parameter of the spec
    type           storage format
    params         parameters and persistent buffers; 0 in "other" and for a tied head
    active_params  of them, those one token uses
    nbytes         payload of all copies
    active_nbytes  bytes one token makes the machine read: of k experts out of E, of one row of an
                   embedding; a tied head reads the whole embedding
    flops          2 per active parameter of a matrix, per token
    """

    name: str
    layer: int | None
    part: LedgerPart
    role: str
    shape: tuple[int, ...]
    copies: int
    type: str
    params: int
    active_params: int
    nbytes: int
    active_nbytes: int
    flops: int

    @property
    def module(self) -> str:
        """The role without ".bias": a linear layer's weight and bias are one module."""
        return self.role.removesuffix(".bias")


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over rows; the fields are LedgerRow's."""

    params: int = 0
    active_params: int = 0
    nbytes: int = 0
    active_nbytes: int = 0
    flops: int = 0

    @classmethod
    def of(cls, rows: Iterable[LedgerRow]) -> Totals:
        params = active_params = nbytes = active_nbytes = flops = 0
        for r in rows:
            params += r.params
            active_params += r.active_params
            nbytes += r.nbytes
            active_nbytes += r.active_nbytes
            flops += r.flops
        return cls(params, active_params, nbytes, active_nbytes, flops)


@dataclass(frozen=True)
class Ledger:
    """The rows of one model in one storage format. `label` says which ("bf16", "Q4_K_M GGUF")."""

    spec: ModelSpec
    label: str
    rows: tuple[LedgerRow, ...]

    @property
    def total(self) -> Totals:
        return Totals.of(self.rows)

    def by_part(self) -> dict[LedgerPart, Totals]:
        """Every part, in the order of LEDGER_PARTS; parts a model lacks are zero."""
        return {p: Totals.of(r for r in self.rows if r.part == p) for p in LEDGER_PARTS}

    def by_layer(self) -> dict[int | None, dict[LedgerPart, Totals]]:
        """Layer number (None: outside the layers) -> the parts that occur there."""
        groups: dict[int | None, dict[LedgerPart, list[LedgerRow]]] = {}
        for r in self.rows:
            groups.setdefault(r.layer, {}).setdefault(r.part, []).append(r)
        return {
            layer: {part: Totals.of(rows) for part, rows in parts.items()}
            for layer, parts in groups.items()
        }

    def by_module(self) -> dict[str, Totals]:
        """Module ("gate_proj", "experts.down_proj", ...) summed over the layers."""
        groups: dict[str, list[LedgerRow]] = {}
        for r in self.rows:
            groups.setdefault(r.module, []).append(r)
        return {module: Totals.of(rows) for module, rows in groups.items()}

    def by_type(self) -> dict[str, Totals]:
        """Storage format -> sums of what is stored in it."""
        groups: dict[str, list[LedgerRow]] = {}
        for r in self.rows:
            if r.nbytes:
                groups.setdefault(r.type, []).append(r)
        return {t: Totals.of(rows) for t, rows in groups.items()}

    def figures(self) -> dict[str, Figure]:
        """Every total with its formula. The keys are stable; dots separate the JSON path.

        params.total .active .non_embedding .embedding .attention .mlp .norm .head .mlp_share
        bytes.total .embedding .attention .mlp .norm .head .other .mlp_share .bits_per_param
        flops.total .attention .mlp .head .mlp_share          GEMM FLOPs per token
        layers.<which>.params.mlp_share  .bytes.mlp_share  .flops.mlp_share
            for each kind of layer; <which> as in layer_label: "0-31", "0-46:2", "0,3-5"
        """
        out = self._params_figures()
        out.update(self._bytes_figures())
        out.update(self._flops_figures())
        by_layer = self.by_layer()
        for label, layers in self.layer_kinds().items():
            kind = [by_layer.get(i, {}) for i in layers]
            for key, unit in (("params", "params"), ("nbytes", "bytes"), ("flops", "flops")):
                mlp = sum(getattr(t.get("mlp", Totals()), key) for t in kind)
                whole = sum(getattr(x, key) for t in kind for x in t.values())
                out[f"layers.{label}.{unit}.mlp_share"] = share(
                    mlp, whole, f"layers {label}, {unit}"
                )
        return out

    def layer_kinds(self) -> dict[str, tuple[int, ...]]:
        """Layers with the same parameters and FLOPs in every part: label -> layer numbers."""
        by_layer = self.by_layer()
        kinds: dict[object, list[int]] = {}
        for layer in self.spec.layers:
            parts = by_layer.get(layer.index, {})
            key = tuple(sorted((p, t.params, t.flops) for p, t in parts.items()))
            kinds.setdefault(key, []).append(layer.index)
        return {layer_label(v): tuple(v) for v in kinds.values()}

    def _params_figures(self) -> dict[str, Figure]:
        total, parts = self.total, self.by_part()
        out = {
            "params.total": _sum_of_parts(
                total.params, "params", {p: parts[p].params for p in PARTS}
            ),
            "params.active": _sum_of_parts(
                total.active_params, "params", {p: parts[p].active_params for p in PARTS}
            ),
            "params.non_embedding": Figure(
                total.params - parts["embedding"].params - parts["head"].params,
                "params",
                "exact",
                "total − embedding − head",
                f"{total.params} − {parts['embedding'].params} − {parts['head'].params}",
                SHAPES,
            ),
        }
        for p in PARTS:
            terms = part_terms(self.spec, (p,))
            out[f"params.{p}"] = _from_terms(parts[p].params, "params", terms)
        out["params.mlp_share"] = share(parts["mlp"].params, total.params, "the model's parameters")
        return out

    def _bytes_figures(self) -> dict[str, Figure]:
        total, parts = self.total, self.by_part()
        out = {"bytes.total": _bytes_figure(self.rows)}
        for p in LEDGER_PARTS:
            out[f"bytes.{p}"] = _bytes_figure([r for r in self.rows if r.part == p])
        out["bytes.mlp_share"] = share(parts["mlp"].nbytes, total.nbytes, "the stored bytes")
        if total.params:
            out["bytes.bits_per_param"] = Figure(
                8 * total.nbytes / total.params,
                "bits",
                "exact",
                "8·bytes / params",
                f"8·{total.nbytes} / {total.params}",
                SHAPES,
            )
        return out

    def _flops_figures(self) -> dict[str, Figure]:
        total, parts = self.total, self.by_part()
        out = {
            "flops.total": _sum_of_parts(
                total.flops,
                "FLOP/token",
                {p: parts[p].flops for p in ("attention", "mlp", "head") if parts[p].flops},
            )
        }
        for p in ("attention", "mlp", "head"):
            out[f"flops.{p}"] = gemm_figure(self.spec, p, parts[p].flops)
        out["flops.mlp_share"] = share(parts["mlp"].flops, total.flops, "GEMM FLOPs per token")
        return out


def make_ledger(spec: ModelSpec, stored: Iterable[StoredTensor], label: str) -> Ledger:
    """The ledger of `spec` as `stored` in files or memory; any format, any number of tensors.

    A tensor outside the spec goes under "other": its bytes count, its parameters do not. A tied
    head has no tensor; it gets a row of its own that holds nothing, reads the embedding and
    multiplies by it.
    """
    rows = [_row(t) for t in stored]
    if tied_head(spec):
        rows.append(_tied_row(spec, rows))
    return Ledger(spec, label, tuple(rows))


def tied_head(spec: ModelSpec) -> bool:
    """The output head is the embedding matrix: a GEMM without a tensor of its own."""
    return spec.tie_word_embeddings and not any(r.part == "head" and r.matmul for r in spec.rows)


def _row(t: StoredTensor) -> LedgerRow:
    row = t.row
    if row is None:
        return LedgerRow(
            t.name, None, "other", "other", t.shape, 1, t.type, 0, 0, t.nbytes, t.nbytes, 0
        )
    active_nbytes = t.active_nbytes
    if row.part == "embedding" and not row.matmul:
        active_nbytes = t.nbytes // max(prod(t.shape[:-1]), 1)  # a lookup reads one row
    return LedgerRow(
        name=t.name,
        layer=row.layer,
        part=row.part,
        role=row.role,
        shape=t.shape,
        copies=row.copies if "{e}" in t.name else 1,
        type=t.type,
        params=t.params,
        active_params=t.active_params,
        nbytes=t.nbytes,
        active_nbytes=active_nbytes,
        flops=2 * t.active_params if row.matmul else 0,
    )


def _tied_row(spec: ModelSpec, rows: list[LedgerRow]) -> LedgerRow:
    embedding = [r for r in rows if r.part == "embedding" and r.role == "embed_tokens"]
    return LedgerRow(
        name=f"lm_head (tied to {embedding[0].name})" if embedding else "lm_head (tied)",
        layer=None,
        part="head",
        role="lm_head",
        shape=(spec.vocab_size, spec.hidden_size),
        copies=1,
        type=embedding[0].type if embedding else "",
        params=0,
        active_params=0,
        nbytes=0,
        active_nbytes=sum(r.nbytes for r in embedding),
        flops=2 * spec.vocab_size * spec.hidden_size,
    )


def layer_label(layers: Iterable[int]) -> str:
    """[0..31] -> "0-31"; [0, 2, .. 46] -> "0-46:2"; otherwise runs: "0,3-5"."""
    n = sorted(layers)
    if len(n) > 2:
        step = n[1] - n[0]
        if n == list(range(n[0], n[-1] + 1, step)):
            return f"{n[0]}-{n[-1]}" + (f":{step}" if step > 1 else "")
    return ",".join(a if a == b else f"{a}-{b}" for a, b in _runs(n))


def _runs(numbers: list[int]) -> Iterator[tuple[str, str]]:
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield str(numbers[start]), str(numbers[i - 1])
            start = i


def share(part: int, whole: int, of: str) -> Figure:
    """part/whole as a Figure, 0 where there is no whole."""
    return Figure(
        part / whole if whole else 0.0,
        "share",
        "exact",
        f"MLP / all ({of})",
        f"{part} / {whole}",
        SHAPES,
    )


def gemm_figure(spec: ModelSpec, part: Part, value: int) -> Figure:
    """GEMM FLOPs per token of one part: 2 per parameter that a token multiplies by."""
    terms = part_terms(spec, (part,), select=lambda r: r.matmul, active=True)
    if part == "head" and tied_head(spec):
        terms = Sum.of_shape(spec, (spec.vocab_size, spec.hidden_size))
    return _from_terms(value, "FLOP/token", terms, factor=2)


def _from_terms(value: int, unit: str, terms: Sum, *, factor: int = 1) -> Figure:
    # A file that stores fewer or other tensors than its config promises has no formula in letters.
    if terms.value * factor != value:
        return Figure(
            value, unit, "exact", "sum of the stored tensors", str(value), "tensor headers"
        )
    letters, numbers = terms.letters, terms.numbers
    if factor != 1:
        letters, numbers = f"{factor}·({letters})", f"{factor}·({numbers})"
    return Figure(value, unit, "exact", letters, numbers, SHAPES)


def _sum_of_parts(value: int, unit: str, parts: Mapping[Part, int]) -> Figure:
    return Figure(
        value,
        unit,
        "exact",
        " + ".join(parts) or "0",
        " + ".join(str(v) for v in parts.values()) or "0",
        SHAPES,
    )


def _bytes_figure(rows: Iterable[LedgerRow]) -> Figure:
    """Σ elements·block bytes/block size, by storage type."""
    elements: dict[str, int] = {}
    nbytes: dict[str, int] = {}
    for r in rows:
        if r.nbytes:
            elements[r.type] = elements.get(r.type, 0) + prod(r.shape) * r.copies
            nbytes[r.type] = nbytes.get(r.type, 0) + r.nbytes
    letters, numbers = [], []
    for t, n in nbytes.items():
        fmt = FORMATS.get(t)
        if fmt and elements[t] * fmt.block_bytes == n * fmt.block_size:
            per = f"/{fmt.block_size}" if fmt.block_size > 1 else ""
            letters.append(f"elements({t})·{fmt.block_bytes}{per}")
            numbers.append(f"{elements[t]}·{fmt.block_bytes}{per}")
        else:
            letters.append(f"bytes({t})")
            numbers.append(str(n))
    return Figure(
        sum(nbytes.values()),
        "B",
        "exact",
        " + ".join(letters) or "0",
        " + ".join(numbers) or "0",
        "block sizes of each storage type (ggml-common.h), shapes of the tensors",
    )
