"""An adapter against its base model: which rows it adapts, and what does not fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from gateup.files.adapter import Adapter
from gateup.files.header import TensorHeader, listed, many
from gateup.model.families.names import NameIndex
from gateup.model.spec import ModelSpec, TensorSpec

# <module>.lora_A.weight, .lora_A.default.weight, .lora_embedding_A, .lora_magnitude_vector
_LORA = re.compile(r"(.+)\.lora_(embedding_)?(A|B|magnitude_vector)(?:\..+)?")
_BASE = ".base_layer"


@dataclass(frozen=True, slots=True)
class AdaptedModule:
    """What an adapter adds to one matrix of its base, or to a layer's experts.

    row     the spec's row; of stacked gate and up, the gate's
    rank    r; for experts that of each: A is [E·r, in], B [out, E·r]
    params  of A, B and, with DoRA, the magnitudes
    """

    row: TensorSpec
    inp: int
    out: int
    rank: int
    params: int


def adapted_modules(spec: ModelSpec, adapter: Adapter) -> tuple[AdaptedModule, ...]:
    """The modules whose A and B the adapter stores, as far as the base has them."""
    return tuple(m for m in _read(spec, adapter) if isinstance(m, AdaptedModule))


def adapter_problems(spec: ModelSpec, adapter: Adapter) -> tuple[str, ...]:
    """Sentences on modules that the base does not have and shapes that do not meet it."""
    found = _read(spec, adapter)
    unknown = list(dict.fromkeys(m for m in found if isinstance(m, str)))
    modules = [m for m in found if isinstance(m, AdaptedModule)]
    wrong = [m for m in modules if (m.inp, m.out) not in _sides(m.row)]
    out = []
    if unknown:
        out.append(
            f"{many(len(unknown), 'module')} of the adapter not in its base: {listed(unknown, 3)}"
        )
    if wrong:
        m = wrong[0]
        out.append(
            f"{many(len(wrong), 'adapted module')} against the base's shapes: {m.row.name} is "
            f"{list(m.row.shape)}, its adapter goes from {m.inp} to {m.out}"
        )
    ranks = {m.rank for m in modules}
    said = {adapter.rank, *adapter.rank_pattern.values()}
    if ranks - said:
        out.append(
            f"the adapter's tensors have rank {', '.join(map(str, sorted(ranks - said)))}, "
            f"its config says {', '.join(map(str, sorted(said)))}"
        )
    return tuple(out)


def _read(spec: ModelSpec, adapter: Adapter) -> list[AdaptedModule | str]:
    """Each adapted module, or its name where the base has none of that name."""
    index = NameIndex(spec, "hf")
    experts: dict[str, list[TensorSpec]] = {}
    for row in spec.rows:
        if row.experts and row.matmul and not row.role.endswith(".up_proj"):  # in gate_up
            experts.setdefault(row.name.split(".experts")[0] + ".experts", []).append(row)
    out: list[AdaptedModule | str] = []
    for name, parts in _modules(adapter.tensors).items():
        module = name.removesuffix(_BASE)
        hit = index.find(module + ".weight") or index.find(module)
        sides = _sides(hit[0])[:1] if hit else ()
        inp, width = sides[0] if sides else (0, 0)  # for the half that a broken file lacks
        r = 0
        if "B" in parts:
            width, r = parts["B"].shape
        if "A" in parts:
            r, inp = parts["A"].shape
        params = sum(prod(t.shape) for t in parts.values())
        if hit is not None:
            out.append(AdaptedModule(hit[0], inp, width, r, params))
            continue
        rows = [x for x in experts.get(module, ()) if (inp, width) in _sides(x)]
        if rows and r and r % rows[0].experts == 0:
            out.append(AdaptedModule(rows[0], inp, width, r // rows[0].experts, params))
        else:
            out.append(module)
    return out


def _sides(row: TensorSpec) -> tuple[tuple[int, int], ...]:
    """(in, out) that an adapter of the row may have: as stored, transposed (GPT-2, gpt-oss,
    embeddings) and, of single experts, gate and up in one.
    """
    if len(row.shape) < 2:
        return ()
    out, inp = row.shape[-2:]
    if row.experts and row.role.endswith("gate_proj"):
        return (inp, 2 * out), (2 * out, inp)
    return (inp, out), (out, inp)


def _modules(tensors: Iterable[TensorHeader]) -> Mapping[str, dict[str, TensorHeader]]:
    """Module -> "A", "B", "magnitude_vector" -> tensor. A and B are matrices.

    Of a module with adapters on two parameters the inner one is named after ".base_layer". The A
    of an embedding is stored transposed ([r, V], like any A); its B is [H, r].
    """
    out: dict[str, dict[str, TensorHeader]] = {}
    for tensor in tensors:
        match = _LORA.fullmatch(tensor.canonical or tensor.name)
        if match and (match[3] == "magnitude_vector" or len(tensor.shape) == 2):
            out.setdefault(match[1], {})[match[3]] = tensor
    return out
