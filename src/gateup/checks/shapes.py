"""Tensors of another shape than described, told apart by what would make them so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Literal, NamedTuple

from gateup.checks.context import Context
from gateup.checks.finding import Evidence
from gateup.files.header import TensorHeader
from gateup.model.spec import MLP, MoESpec, TensorSpec

PROJECTIONS = ("gate_proj", "up_proj", "gate_up_proj", "down_proj")
_EXPERT = re.compile(r"\.experts\.\d+\.")


class Wrong(NamedTuple):
    """One tensor, the shape described, and the row it belongs to."""

    tensor: TensorHeader
    expected: tuple[int, ...]
    row: TensorSpec

    @property
    def empty(self) -> bool:
        return 0 in self.tensor.shape

    @property
    def axis(self) -> int | None:
        """The one axis that differs; None where several do, or their number does."""
        found, said = self.tensor.shape, self.expected
        if len(found) != len(said):
            return None
        axes = [i for i, (a, b) in enumerate(zip(found, said, strict=True)) if a != b]
        return axes[0] if len(axes) == 1 else None

    @property
    def transposed(self) -> bool:
        """The last two axes have changed places."""
        found, said = self.tensor.shape, self.expected
        if min(len(found), len(said)) < 2 or found == said:
            return False
        return found == (*said[:-2], said[-1], said[-2])


def as_found(wrongs: Iterable[Wrong], context: Context) -> tuple[Evidence, ...]:
    """Shapes beside those that the config asks for."""
    source = context.source("config")
    return tuple(
        Evidence(w.tensor.name, str(list(w.tensor.shape)), str(list(w.expected)), source)
        for w in wrongs
    )


def wrong_shapes(context: Context) -> list[Wrong]:
    """Every tensor of another shape, beyond what one edit of the config explains."""
    out = []
    by_name = {r.name: r for r in context.spec.rows}
    for m in context.mismatches("shape"):
        for tensor, expected in zip(m.tensors, m.expected, strict=True):
            name = tensor.canonical or ""
            row = by_name.get(name) or by_name.get(_EXPERT.sub(".experts.{e}.", name))
            if row is not None:
                out.append(Wrong(tensor, expected, row))
    return out


class Width(NamedTuple):
    """The width that one layer's MLP tensors have, where they agree.

    group    "" for a dense MLP, "experts", "shared_expert"
    said     the described width
    found    the width of all of them; None where they disagree
    tensors  those at fault
    """

    layer: int
    group: str
    said: int
    found: int | None
    tensors: tuple[Wrong, ...]


def odd_widths(context: Context, wrongs: Sequence[Wrong]) -> list[Width]:
    """Layers whose gate, up and down have another width than described, and nothing else wrong."""
    grouped: dict[tuple[int, str], list[tuple[Wrong, int | None]]] = {}
    for w in wrongs:
        group, _, role = w.row.role.removesuffix(".bias").rpartition(".")
        layer = w.row.layer
        if layer is None or w.row.part != "mlp" or role not in PROJECTIONS or w.empty:
            continue
        said = width_of(context.spec.layers[layer].mlp, group)
        grouped.setdefault((layer, group), []).append((w, _width(w, said)))
    wanted: dict[tuple[int | None, str], int] = {}
    for row in context.spec.rows:
        group, _, role = row.role.rpartition(".")
        if row.part == "mlp" and role in PROJECTIONS:
            key = row.layer, group
            wanted[key] = wanted.get(key, 0) + row.copies
    stacked = context.checkpoint.kind == "gguf"
    out = []
    for (layer, group), found in grouped.items():
        if any(width is None for _, width in found):
            continue  # more than the width is wrong with it
        weights = [pair for pair in found if not pair[0].row.role.endswith(".bias")]
        widths = {width for _, width in weights}
        whole = len(weights) == (3 if stacked else wanted[layer, group])
        said = width_of(context.spec.layers[layer].mlp, group)
        agreed = widths.pop() if len(widths) == 1 and whole else None
        out.append(Width(layer, group, said, agreed, tuple(w for w, _ in found)))
    return sorted(out)


def width_of(mlp: MLP | None, group: str) -> int:
    """The described width of a layer's MLP, of one expert, or of its shared experts."""
    if isinstance(mlp, MoESpec):
        part = mlp.shared if group == "shared_expert" else mlp.expert
        return part.intermediate_size if part else 0
    return mlp.intermediate_size if mlp else 0


def _width(w: Wrong, said: int) -> int | None:
    """The width that the tensor's one differing axis shows; None where it shows none."""
    axis = w.axis
    if axis is None or not said:
        return None
    was, found = w.expected[axis], w.tensor.shape[axis]
    if was == said:
        return found
    if was == 2 * said:  # gate and up in one
        return found // 2 if found % 2 == 0 else None
    return None


def shard_degree(context: Context, wrongs: Sequence[Wrong]) -> int | None:
    """k where the files hold one of k tensor-parallel shards: every weight cut along one axis by
    the same whole factor, in MLP and attention alike; None otherwise."""
    factors = set()
    parts = set()
    for w in wrongs:
        axis = w.axis
        if axis is None or w.empty or w.expected[axis] % w.tensor.shape[axis]:
            return None
        factors.add(w.expected[axis] // w.tensor.shape[axis])
        parts.add(w.row.part)
    if len(factors) != 1 or not {"mlp", "attention"} <= parts:
        return None
    degree = factors.pop()
    return degree if degree > 1 else None


BIASES = "their biases have changed places too"


class Exchange(NamedTuple):
    """Two tensors of one module, each of which has the shape described for the other.

    sure     that their names were exchanged: "sure"; that, or both were turned: "either"
    witness  what tells, or a sibling that lies as described; "" where nothing does
    """

    first: Wrong
    second: Wrong
    sure: Literal["sure", "either"]
    witness: str

    @property
    def names(self) -> tuple[str, str]:
        return leaf(self.first.tensor.name), leaf(self.second.tensor.name)

    @property
    def claims(self) -> set[str]:
        """Names of the tensors that the exchange explains."""
        pair = {self.first.tensor.name, self.second.tensor.name}
        if self.witness != BIASES:
            return pair
        return pair | {n.removesuffix(".weight") + ".bias" for n in pair}


def leaf(name: str) -> str:
    """ "model.layers.0.mlp.gate_proj.weight" -> "gate_proj"."""
    return name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]


def _module(name: str) -> tuple[str, str]:
    """ "model.layers.0.mlp.gate_proj.bias" -> ("model.layers.0.mlp", "bias")."""
    kind = "bias" if name.endswith(".bias") else "weight"
    return name.removesuffix(f".{kind}").rpartition(".")[0], kind


def exchanges(context: Context, wrongs: Sequence[Wrong]) -> list[Exchange]:
    """Pairs whose names were exchanged, as far as shapes tell that from two turned tensors.

    gate [I, H] and down [H, I] are each other's mirror image, so one layer's two wrong shapes fit
    both readings. What tells: a third matrix of the module, which a converter would have turned
    too; biases, which go with the names and have nothing to turn; more than one layer of it.
    """
    groups: dict[tuple[str, str], list[Wrong]] = {}
    for w in wrongs:
        if w.row.layer is not None and not w.empty:
            groups.setdefault(_module(w.tensor.canonical or ""), []).append(w)
    pairs = {
        key: [
            (a, b)
            for a, b in combinations(group, 2)
            if a.tensor.shape == b.expected and b.tensor.shape == a.expected
        ]
        for key, group in groups.items()
        if len(group) < 9  # no module has more matrices
    }
    if not any(pairs.values()):
        return []
    present = _present(context)
    found = []
    for (module, kind), candidates in pairs.items():
        if kind == "weight" and candidates:
            found += _told(groups, module, candidates, present)
    if len(found) == 1 and context.spec.num_layers > 1 and found[0].first.transposed:
        return [found[0]._replace(sure="sure" if found[0].witness == BIASES else "either")]
    return found


def _present(context: Context) -> Mapping[str, Sequence[tuple[str, tuple[int, ...]]]]:
    """Module -> (canonical name, shape) of its tensors in the files."""
    out: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for t in context.checkpoint.headers:
        if t.canonical is not None:
            out.setdefault(_module(t.canonical)[0], []).append((t.canonical, t.shape))
    return out


def _told(
    groups: Mapping[tuple[str, str], Sequence[Wrong]],
    module: str,
    candidates: Sequence[tuple[Wrong, Wrong]],
    present: Mapping[str, Sequence[tuple[str, tuple[int, ...]]]],
) -> list[Exchange]:
    """The pairs of one module that are exchanges, and how sure that is."""
    wrong = {w.tensor.canonical for w in groups[module, "weight"]}
    turned = sum(w.transposed for w in groups[module, "weight"])
    biases = {w.tensor.canonical for w in groups.get((module, "bias"), ())}
    here = dict(present.get(module, ()))
    out = []
    for a, b in candidates:
        if not (a.transposed and b.transposed):
            out.append(Exchange(a, b, "sure", "no turning gives these shapes"))
            continue
        stems = [str(w.tensor.canonical).removesuffix(".weight") + ".bias" for w in (a, b)]
        shapes = {here.get(s) for s in stems}
        if None not in shapes and len(shapes) == 2:
            if biases >= set(stems):
                out.append(Exchange(a, b, "sure", BIASES))
            continue  # biases that fit their names: the weights were turned
        if turned > 2:
            continue  # the module's other matrices were turned as well
        right = [
            name
            for name, shape in here.items()
            if name not in wrong and len(shape) >= 2 and shape[-1] != shape[-2]
        ]
        if right:
            out.append(Exchange(a, b, "sure", f"{leaf(right[0])} lies as described"))
        elif not _turned_elsewhere(groups, a):
            out.append(Exchange(a, b, "either", ""))
    return out


def _turned_elsewhere(groups: Mapping[tuple[str, str], Sequence[Wrong]], near: Wrong) -> bool:
    """Whether a matrix of another module of the layer lies the other way round."""
    layer, part = near.row.layer, near.row.part
    return any(
        w.transposed
        for group in groups.values()
        for w in group
        if w.row.layer == layer and w.row.part != part
    )
