"""An adapter's tensors as pairs of A and B on the modules of its base."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateup.checks.lora_targets import leaf_of
from gateup.files.adapter import Adapter
from gateup.files.header import TensorHeader
from gateup.model.families.names import NameIndex
from gateup.model.spec import ModelSpec, TensorSpec

# <module>.lora_A.weight, .lora_A.default.weight, .lora_embedding_A, .lora_magnitude_vector
_LORA = re.compile(
    r"(?P<module>.+?)\.lora_(?P<embedding>embedding_)?(?P<which>A|B|magnitude_vector)"
    r"(?P<tail>\..+)?"
)
_BASE = re.compile(r"(?:\.base_layer)+$")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|layer|blocks)\.(\d{1,6})\.")
# transformers 5 calls Mixtral's block mlp, and PEFT saves it so; the Hub's files keep the old name.
_RENAMED = {"mixtral": (".mlp.", ".block_sparse_moe.")}
# <module>.modules_to_save.default.weight, or the module's own name where PEFT has saved it
_SAVED = re.compile(r"(.+?)(?:\.modules_to_save(?:\.[^.]+)?|\.original_module)?\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class Pair:
    """A and B on one module. None: that half is not in the file.

    row        the base's row; None where the base has no such module
    experts    adapters on stacked experts (PEFT's target_parameters): E of them in one tensor
    embedding  on an embedding: A [r, V] is stored transposed, B is [H, r]
    """

    module: str
    a: TensorHeader | None
    b: TensorHeader | None
    row: TensorSpec | None
    experts: bool = False
    embedding: bool = False
    magnitude: TensorHeader | None = None

    @property
    def leaf(self) -> str:
        return leaf_of(self.module)

    @property
    def layer(self) -> int | None:
        return layer_of(self.module)

    @property
    def rank(self) -> int | None:
        """A's rows, else B's columns; None without either."""
        for tensor, axis in ((self.a, 0), (self.b, 1)):
            if tensor is not None and len(tensor.shape) == 2:
                return tensor.shape[axis]
        return None

    @property
    def inp(self) -> int | None:
        return self.a.shape[1] if self.a is not None and len(self.a.shape) == 2 else None

    @property
    def out(self) -> int | None:
        return self.b.shape[0] if self.b is not None and len(self.b.shape) == 2 else None

    def wanted(self, spec: ModelSpec) -> tuple[int, int] | None:
        """(in, out) of the base's module; None where there is none, or it is a stack."""
        if self.row is None or self.experts or len(self.row.shape) != 2:
            return None
        out, inp = self.row.shape
        conv1d = spec.family == "gpt2" and self.row.layer is not None  # stored [in, out]
        if self.embedding or conv1d:
            out, inp = inp, out
        return inp, out

    def fits(self, spec: ModelSpec) -> bool:
        wanted = self.wanted(spec)
        if wanted is None:
            return self.row is not None
        return self.inp in (None, wanted[0]) and self.out in (None, wanted[1])


def layer_of(name: str) -> int | None:
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def pairs_of(spec: ModelSpec, adapter: Adapter, replicated: Sequence[int] = ()) -> tuple[Pair, ...]:
    """Every adapted module, in the order of the file.

    replicated  the base's layer that each layer of the adapter's is a copy of; (): they are its own
    """
    halves: dict[str, dict[str, TensorHeader]] = {}
    embeddings = set()
    for tensor in adapter.tensors:
        found = _LORA.fullmatch(tensor.canonical or tensor.name)
        if found is None or (found["tail"] or "").endswith(".bias"):
            continue
        halves.setdefault(found["module"], {}).setdefault(found["which"], tensor)
        if found["embedding"]:
            embeddings.add(found["module"])
    index = NameIndex(spec, "hf")
    return tuple(
        _pair(spec, index, module, have, module in embeddings, replicated)
        for module, have in halves.items()
    )


def _pair(
    spec: ModelSpec,
    index: NameIndex,
    module: str,
    have: dict[str, TensorHeader],
    embedding: bool,
    replicated: Sequence[int] = (),
) -> Pair:
    name = _BASE.sub("", module).replace(*_RENAMED.get(spec.family, ("", "")))
    copy = layer_of(name) if replicated else None
    if copy is not None and copy < len(replicated):
        name = name.replace(f".{copy}.", f".{replicated[copy]}.", 1)
    hit = index.find(name + ".weight") or index.find(name)
    row, experts = (hit[0] if hit else None), False
    if row is None:
        row = _stack(spec, name)
        experts = row is not None
    elif row.experts and hit is not None and hit[1] is None:
        experts = True  # the stacked parameter by its own name
    if row is None and leaf_of(name) == "lm_head" and spec.tie_word_embeddings:
        row = next((r for r in spec.rows if r.part == "embedding" and len(r.shape) == 2), None)
    own = _BASE.sub("", module) if replicated else name
    return Pair(
        own, have.get("A"), have.get("B"), row, experts, embedding, have.get("magnitude_vector")
    )


def _stack(spec: ModelSpec, name: str) -> TensorSpec | None:
    """A row of the experts that a module name such as model.layers.0.mlp.experts stands for."""
    if not name.endswith("experts"):
        return None
    return next((r for r in spec.rows if r.experts and r.name.startswith(name + ".")), None)


def saved_modules(spec: ModelSpec, adapter: Adapter) -> dict[str, tuple[TensorHeader, str]]:
    """Tensors stored whole (modules_to_save): the base's name for each -> (tensor, its module).

    The base's own name where it has one, the adapter's otherwise.
    """
    index = NameIndex(spec, "hf")
    out = {}
    for tensor in adapter.tensors:
        name = tensor.canonical or tensor.name
        if _LORA.fullmatch(name):
            continue
        found = _SAVED.fullmatch(name)
        if found is None:
            out[name] = (tensor, name)
            continue
        module = _BASE.sub("", found[1])
        own = f"{module}.{found[2]}"
        hit = index.find(own)
        out[hit[0].name if hit else own] = (tensor, module)
    return out
