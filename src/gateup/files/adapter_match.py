"""An adapter against its base model: which rows it adapts, and what does not fit."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gateup.files.adapter import Adapter
from gateup.files.header import TensorHeader, listed, many
from gateup.model.families.names import NameIndex
from gateup.model.spec import ModelSpec

# <module>.lora_A.weight, .lora_A.default.weight, .lora_embedding_A, .lora_magnitude_vector
_LORA = re.compile(r"(.+)\.lora_(embedding_)?(A|B|magnitude_vector)(?:\..+)?")


def adapter_problems(spec: ModelSpec, adapter: Adapter) -> tuple[str, ...]:
    """Sentences on modules that the base does not have and shapes that do not meet it."""
    index = NameIndex(spec, "hf")
    unknown, wrong, ranks = [], [], set()
    for tensor, module, which in _lora(adapter.tensors):
        hit = index.find(module + ".weight") or index.find(module)
        if hit is None:
            unknown.append(module)
            continue
        if which == "magnitude_vector" or len(tensor.shape) != 2:
            continue
        row, _ = hit
        rank, width = tensor.shape if which == "A" else tensor.shape[::-1]
        ranks.add(rank)
        if len(row.shape) == 2 and width != row.shape[1 if which == "A" else 0]:
            wrong.append(f"{tensor.name} is {list(tensor.shape)} for a weight of {list(row.shape)}")
    out = []
    if unknown:
        modules = list(dict.fromkeys(unknown))
        out.append(
            f"{many(len(modules), 'module')} of the adapter not in its base: {listed(modules, 3)}"
        )
    if wrong:
        out.append(f"{many(len(wrong), 'adapter tensor')} against the base's shapes: {wrong[0]}")
    said = {adapter.rank, *adapter.rank_pattern.values()}
    if ranks - said:
        out.append(
            f"the adapter's tensors have rank {', '.join(map(str, sorted(ranks - said)))}, "
            f"its config says {', '.join(map(str, sorted(said)))}"
        )
    return tuple(out)


def _lora(tensors: Iterable[TensorHeader]) -> Iterable[tuple[TensorHeader, str, str]]:
    """(tensor, module it adapts, "A" | "B" | "magnitude_vector") of the LoRA tensors.

    The A of an embedding is stored transposed ([r, V], like any A); its B is [H, r].
    """
    for tensor in tensors:
        match = _LORA.fullmatch(tensor.canonical or tensor.name)
        if match and not match[2]:
            yield tensor, match[1].removesuffix(".base_layer"), match[3]
