"""One MLP's tensors under the names of each kind of file, and back.

The names come from the families' tables; only their last two parts matter here, because what
stands before is the caller's prefix ("model.layers.0.mlp.", "blk.0.").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

import torch
from torch import Tensor

from gateup.errors import InputError, UsageError
from gateup.model.families.llama import NAMES
from gateup.model.families.phi3 import PHI3_NAMES
from gateup.ops.layouts import halves

Dialect = Literal["hf", "meta", "phi3", "gguf", "megatron"]
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Leaves:
    """Names without prefix and without ".weight" or ".bias".

    `up` is None where gate and up are one tensor, rows of gate first, called `gate`.
    """

    gate: str
    up: str | None
    down: str

    def all(self) -> tuple[str, ...]:
        return tuple(n for n in (self.gate, self.up, self.down) if n is not None)


def _leaf(template: str | None) -> str:
    assert template is not None
    return template.split(".")[-2]


LEAVES: Mapping[str, Leaves] = MappingProxyType(
    {
        "hf": Leaves(*(_leaf(NAMES[role].hf) for role in PROJECTIONS)),
        "meta": Leaves(*(_leaf(NAMES[role].meta) for role in PROJECTIONS)),
        "gguf": Leaves(*(_leaf(NAMES[role].gguf) for role in PROJECTIONS)),
        "phi3": Leaves(_leaf(PHI3_NAMES["gate_up_proj"].hf), None, _leaf(NAMES["down_proj"].hf)),
        "megatron": Leaves(
            _leaf(NAMES["gate_proj"].megatron), None, _leaf(NAMES["down_proj"].megatron)
        ),
    }
)


def leaves_of(dialect: str) -> Leaves:
    """UsageError for a dialect that is not known."""
    found = LEAVES.get(dialect)
    if found is None:
        raise UsageError(
            f"{dialect!r} is not a dialect of names", expected=", ".join(get_args(Dialect))
        )
    return found


def read(tensors: Mapping[str, Tensor], prefix: str, dialect: str) -> dict[str, Tensor]:
    """The MLP's tensors under `prefix`, as {"gate_proj.weight": [I, H], ...}; nothing is copied.

    Tensors outside the prefix are left alone, and so are those under it that are no part of an
    MLP. Raises InputError for a tensor that is missing, quantised, or of a shape that does not
    fit the others.
    """
    leaves, prefix = leaves_of(dialect), _dotted(prefix)
    found: dict[str, Tensor] = {}
    for kind in ("weight", "bias"):
        for projection, leaf in zip(
            PROJECTIONS, (leaves.gate, leaves.up, leaves.down), strict=True
        ):
            name = f"{prefix}{leaf}.{kind}"
            if leaf is None or (kind == "bias" and name not in tensors):
                continue
            tensor = _floating(tensors, name, prefix, leaves)
            if leaves.up is None and projection == "gate_proj":
                gate, up = _apart(name, tensor)
                found[f"gate_proj.{kind}"], found[f"up_proj.{kind}"] = gate, up
            else:
                found[f"{projection}.{kind}"] = tensor
    _check_shapes(found, prefix)
    order = [f"{p}.{kind}" for p in PROJECTIONS for kind in ("weight", "bias")]
    return {name: found[name] for name in order if name in found}


def write(tensors: Mapping[str, Tensor], prefix: str, dialect: str) -> dict[str, Tensor]:
    """What `read` gives back as `tensors`: the same elements under the dialect's names.

    Raises UsageError where the dialect fuses gate and up and only one of them has a bias.
    """
    leaves, prefix = leaves_of(dialect), _dotted(prefix)
    out: dict[str, Tensor] = {}
    if leaves.up is not None:
        for projection, leaf in zip(PROJECTIONS, leaves.all(), strict=True):
            for kind in ("weight", "bias"):
                if f"{projection}.{kind}" in tensors:
                    out[f"{prefix}{leaf}.{kind}"] = tensors[f"{projection}.{kind}"]
        return out
    for kind in ("weight", "bias"):
        pair = [tensors.get(f"{p}.{kind}") for p in PROJECTIONS[:2]]
        first, second = pair
        if first is not None and second is not None:
            out[f"{prefix}{leaves.gate}.{kind}"] = torch.cat((first, second))
        elif first is not None or second is not None:
            raise UsageError(
                f"one of gate_proj and up_proj has a {kind}, the other none",
                expected=f"both or neither: {dialect!r} keeps them in one tensor",
            )
    for kind in ("weight", "bias"):
        if f"down_proj.{kind}" in tensors:
            out[f"{prefix}{leaves.down}.{kind}"] = tensors[f"down_proj.{kind}"]
    return out


def _dotted(prefix: str) -> str:
    return prefix if not prefix or prefix.endswith(".") else prefix + "."


def _floating(tensors: Mapping[str, Tensor], name: str, prefix: str, leaves: Leaves) -> Tensor:
    tensor = tensors.get(name)
    if tensor is None:
        under = sorted(n for n in tensors if n.startswith(prefix))
        listed = ", ".join(under[:6]) + (f" and {len(under) - 6} more" if len(under) > 6 else "")
        raise InputError(
            f"{name} is missing",
            where=f"under {prefix!r}: {listed or 'nothing'}",
            expected=", ".join(f"{prefix}{leaf}.weight" for leaf in leaves.all()),
        )
    if not torch.is_floating_point(tensor):
        raise InputError(
            f"{name} is {str(tensor.dtype).removeprefix('torch.')}, shape {tuple(tensor.shape)}",
            expected="a floating-point tensor",
            remedy="dequantise it first",
        )
    return tensor


def _apart(name: str, fused: Tensor) -> tuple[Tensor, Tensor]:
    if not fused.dim() or fused.shape[0] % 2:
        raise InputError(
            f"{name} has shape {tuple(fused.shape)}",
            expected="an even number of rows: gate's, then up's",
        )
    gate, up = halves(fused.t() if fused.dim() == 2 else fused, "concat")
    return (gate.t(), up.t()) if fused.dim() == 2 else (gate, up)


def _check_shapes(found: Mapping[str, Tensor], prefix: str) -> None:
    gate = found["gate_proj.weight"]
    if gate.dim() != 2:
        raise InputError(
            f"{prefix}gate_proj.weight has shape {tuple(gate.shape)}", expected="[I, H]"
        )
    width, hidden = gate.shape
    shapes = {
        "gate_proj.weight": (width, hidden),
        "up_proj.weight": (width, hidden),
        "down_proj.weight": (hidden, width),
        "gate_proj.bias": (width,),
        "up_proj.bias": (width,),
        "down_proj.bias": (hidden,),
    }
    for name, tensor in found.items():
        if tuple(tensor.shape) != shapes[name]:
            raise InputError(
                f"{name} has shape {tuple(tensor.shape)}",
                where=f"under {prefix!r}, where gate_proj.weight is [I, H] = {(width, hidden)}",
                expected=f"{shapes[name]}",
            )
        if tensor.dtype != gate.dtype:
            raise InputError(
                f"{name} is {tensor.dtype}, gate_proj.weight {gate.dtype}",
                where=f"under {prefix!r}",
                expected="one dtype",
            )
