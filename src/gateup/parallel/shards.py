"""Which parameter of an MLP is cut along which axis, and the way to DTensors and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from gateup.errors import InputError
from gateup.model.layout import GateUpLayout


@dataclass(frozen=True)
class Piece:
    """One parameter: `name` of `owner`.

    axis   the one that is cut; None: whole on every rank
    pair   the axis is 2·I, all of one projection before all of the other. Cut as it stands, one
           rank would get gate and the next one up; it becomes two axes [2, I], and I is cut
    """

    owner: nn.Module
    name: str
    axis: int | None
    pair: bool = False

    @property
    def parameter(self) -> nn.Parameter | None:
        found: nn.Parameter | None = self.owner._parameters.get(self.name)
        return found

    @property
    def placement(self) -> Placement:
        if self.axis is None:
            return Replicate()
        return Shard(self.axis + 1 if self.pair else self.axis)

    def apart(self, tensor: Tensor) -> Tensor:
        """As the checkpoint has it -> as it is cut; a view."""
        if not self.pair or self.axis is None:
            return tensor
        shape = list(tensor.shape)
        shape[self.axis : self.axis + 1] = [2, shape[self.axis] // 2]
        return tensor.view(shape)

    def together(self, tensor: Tensor) -> Tensor:
        """The way back; a view."""
        if not self.pair or self.axis is None:
            return tensor
        return tensor.flatten(self.axis, self.axis + 1)

    def spread(self, mesh: DeviceMesh) -> None:
        """Make the parameter a DTensor, of the first rank's values."""
        parameter = self.parameter
        if parameter is None:
            return
        whole = self.apart(parameter.detach())
        spread = distribute_tensor(whole, mesh, [self.placement])
        self.owner._parameters[self.name] = nn.Parameter(
            spread, requires_grad=parameter.requires_grad
        )

    def local(self) -> Tensor | None:
        """What this rank has of it, a plain tensor in the shape the ops take; gradients flow."""
        parameter = self.parameter
        if parameter is None:
            return None
        assert isinstance(parameter, DTensor)
        return self.together(parameter.to_local())


def split_pieces(gate: nn.Module, up: nn.Module, down: nn.Module) -> tuple[Piece, ...]:
    """Of three linear modules: weight and bias of gate, of up, of down."""
    return (
        *(Piece(linear, kind, 0) for linear in (gate, up) for kind in ("weight", "bias")),
        Piece(down, "weight", 1),
        Piece(down, "bias", None),
    )


def fused_pieces(gate_up: nn.Module, down: nn.Module, layout: GateUpLayout) -> tuple[Piece, ...]:
    """Of two linear modules: weight and bias of gate_up, of down."""
    pair = layout.form == "concat"
    return (
        *(Piece(gate_up, kind, 0, pair) for kind in ("weight", "bias")),
        Piece(down, "weight", 1),
        Piece(down, "bias", None),
    )


def expert_pieces(experts: nn.Module, layout: GateUpLayout) -> tuple[Piece, ...]:
    """Of stacked parameters: gate_up, down, their biases."""
    pair, out_in = layout.form == "concat", layout.orientation == "out_in"
    return (
        Piece(experts, "gate_up_proj", 1 if out_in else 2, pair),
        Piece(experts, "down_proj", 2 if out_in else 1),
        Piece(experts, "gate_up_proj_bias", 1, pair),
        Piece(experts, "down_proj_bias", None),
    )


def whole_tensors(module: nn.Module, pieces: Iterator[Piece]) -> dict[str, Tensor]:
    """The state dict with whole plain tensors, on every rank, shaped as before the cut."""
    cut = _by_key(module, pieces)
    result = {}
    for key, value in module.state_dict().items():
        if isinstance(value, DTensor):
            value = value.full_tensor()
        piece = cut.get(key)
        result[key] = value if piece is None else piece.together(value)
    return result


def load_whole(module: nn.Module, pieces: Iterator[Piece], tensors: Mapping[str, Tensor]) -> None:
    """Write whole tensors, the same on every rank, into the parameters: each rank its part.

    Raises InputError for a key that is missing or unknown, and for a shape that does not fit.
    """
    cut, own = _by_key(module, pieces), module.state_dict()
    missing, unknown = own.keys() - tensors.keys(), tensors.keys() - own.keys()
    if missing or unknown:
        names = ", ".join(sorted(missing or unknown)[:6])
        raise InputError(
            f"{len(missing or unknown)} tensors are {'missing' if missing else 'unknown'}: {names}",
            expected="the keys of the module's state dict",
        )
    with torch.no_grad():
        for key, target in own.items():
            piece, value = cut.get(key), tensors[key]
            shape = tuple(target.shape) if piece is None else _together(piece, target)
            if tuple(value.shape) != shape:
                raise InputError(
                    f"{key} has shape {tuple(value.shape)}", expected=f"{shape}, as in the module"
                )
            if piece is not None:
                value = piece.apart(value)
            if isinstance(target, DTensor):
                value = value.to(target.device)
                # No rank sends: each takes its part of what it was given.
                value = distribute_tensor(
                    value, target.device_mesh, target.placements, src_data_rank=None
                )
            target.copy_(value)


def _together(piece: Piece, target: Tensor) -> tuple[int, ...]:
    shape = list(target.shape)
    if piece.pair and piece.axis is not None:
        shape[piece.axis : piece.axis + 2] = [shape[piece.axis] * shape[piece.axis + 1]]
    return tuple(shape)


def _by_key(module: nn.Module, pieces: Iterator[Piece]) -> dict[str, Piece]:
    known = {(id(piece.owner), piece.name): piece for piece in pieces}
    return {
        f"{prefix}.{name}" if prefix else name: known[id(owner), name]
        for prefix, owner in module.named_modules(remove_duplicate=False)
        for name in owner._parameters
        if (id(owner), name) in known
    }
