"""Tensor parallel: every gated MLP's width over the ranks of a mesh.

Gate and up are cut by rows (a rank's part of I), down by columns; the parameters become DTensors,
the ops see plain local tensors. A dense MLP costs one all-reduce in forward and one in backward
(of x's gradient, where it is needed); experts send their routing weights' gradient besides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from gateup.errors import UsageError
from gateup.hf.forward import SLOTS, Forward
from gateup.hf.patch import patch
from gateup.nn.gated_mlp import GatedMLP
from gateup.nn.moe import Experts
from gateup.nn.projections import why_not_plain
from gateup.ops.options import MLPOptions
from gateup.parallel.collectives import Region, summed
from gateup.parallel.forward import ExpertsSharded, FusedSharded, Sharded, SplitSharded
from gateup.parallel.shards import Piece, load_whole, whole_tensors

M = TypeVar("M", bound=nn.Module)


def tensor_parallel(module: M, mesh: DeviceMesh, *, sequence_parallel: bool = False) -> M:
    """Spread every gated MLP of `module` over the ranks of `mesh`, in place; returns `module`.

    module  a GatedMLP, FeedForward or MoE of gateup.nn, a module that holds some, or a model of
            transformers: its patched MLPs, all that gateup knows where none is patched
    mesh    of one axis: init_device_mesh("cpu", (2,)), or the axis of a larger one, mesh["tp"].
            All its ranks must call this
    sequence_parallel
            False: x and y are whole on every rank. True: each rank passes its own rows of x
            [..., T/tp, H], as many as every other, and gets its rows of y; what lies between the
            MLPs works on those rows, and its gradients are summed over ranks

    Parameters take the first rank's values. gate and up become Shard(0), down Shard(1), down's
    bias is whole on every rank and added once; gate and up in one matrix, gate's rows first, is
    kept as [2, I, H] with Shard(1); experts are cut along I. All other parameters and buffers stay
    plain and are made equal to the first rank's. Apply it before FSDP and before an optimizer is
    made. 16-bit dtypes are computed with rounding "wide", whatever the options say.

    Raises UsageError, before anything is changed, where a width does not divide by the number of
    ranks, a projection is more than an nn.Linear, the mesh does not fit, or there is no gated MLP.
    """
    _check_mesh(mesh)
    region = Region(mesh, sequence_parallel)
    found = _plan(module, region)
    _check_parameters(module, mesh)
    _check_widths(found, mesh.size())
    for sharded in found.values():
        sharded.spread()
        sharded.module.__dict__["forward"] = sharded
    _replicate(module, region)
    return module


def full_state_dict(module: nn.Module) -> dict[str, Tensor]:
    """The state dict as one process has it: whole plain tensors, standard names and shapes.

    All ranks must call it, and each gets all of it.
    """
    return whole_tensors(module, _pieces(module))


def load_full_state_dict(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load what `full_state_dict` gave, for any number of ranks, or one process's state dict.

    Every rank passes the same tensors and takes its part; nothing is sent. Raises InputError for
    a key that is missing or unknown, or a shape that does not fit.
    """
    load_whole(module, _pieces(module), tensors)


def _pieces(module: nn.Module) -> Iterator[Piece]:
    for child in module.modules():
        forward = child.__dict__.get("forward")
        if isinstance(forward, Sharded):
            yield from forward.pieces


# ---- what is there, and whether it can be spread ------------------------------------------------


def _plan(module: nn.Module, region: Region) -> dict[str, Sharded]:
    """Every gated MLP by name, with the forward it is to have."""
    if not isinstance(module, nn.Module):
        raise UsageError(
            f"the module is of type {type(module).__name__}", expected="a torch.nn.Module"
        )
    found = _find(module, region)
    if not found:
        # It raises UsageError where there is nothing to patch.
        patch(module, options=MLPOptions(rounding="wide"), quiet=True)
        found = _find(module, region)
    for name, sharded in found.items():
        _check_projections(name, sharded)
    return found


def _find(module: nn.Module, region: Region) -> dict[str, Sharded]:
    found = {}
    for name, child in module.named_modules():
        if isinstance(child.__dict__.get("forward"), Sharded):
            raise UsageError(f"{_called(name)} is tensor-parallel already")
        sharded = _sharded(name, child, region)
        if sharded is not None:
            found[name] = sharded
    return found


def _sharded(name: str, module: Any, region: Region) -> Sharded | None:
    if isinstance(module, GatedMLP):
        return SplitSharded(module, region, module.act)
    if isinstance(module, Experts):
        return ExpertsSharded(module, region, module.act, None, module.layout)
    forward = next((f for s in SLOTS if isinstance(f := module.__dict__.get(s), Forward)), None)
    if forward is None:
        return None
    if region.sequence:
        raise UsageError(
            f"{_called(name)} is transformers' {type(module).__name__}, whose model has all tokens"
            " on every rank",
            expected="sequence_parallel=False for models of transformers",
        )
    if "_old_forward" in module.__dict__:
        raise UsageError(
            f"{_called(name)} is hooked by accelerate", remedy="load the model without device_map"
        )
    act, options, row = forward.act, forward.options, forward.row
    if row.kind == "split":
        return SplitSharded(module, region, act, options)
    kind = FusedSharded if row.kind == "fused" else ExpertsSharded
    if getattr(module, "_is_expert_parallel", False):
        raise UsageError(f"the experts of {_called(name)} are spread over ranks already")
    return kind(module, region, act, options, row.layout)


def _check_projections(name: str, sharded: Sharded) -> None:
    for child, linear in sharded.projections.items():
        reason = why_not_plain(linear)
        if reason is not None:
            raise UsageError(
                f"{name}.{child} cannot be cut: {reason}".removeprefix("."),
                expected="a plain nn.Linear",
                remedy="merge adapters first (PEFT: merge_and_unload), dequantise, and apply"
                " tensor_parallel before FSDP",
            )


def _check_parameters(module: nn.Module, mesh: DeviceMesh) -> None:
    for name, tensor in _tensors(module):
        if isinstance(tensor, DTensor):
            raise UsageError(
                f"{name} is a DTensor: it is spread over ranks already",
                remedy="apply tensor_parallel first, FSDP after",
            )
        if tensor.device.type not in (mesh.device_type, "meta"):
            raise UsageError(
                f"{name} is on {tensor.device}, the mesh on {mesh.device_type}",
                expected="one kind of device",
            )


def _check_mesh(mesh: DeviceMesh) -> None:
    if not isinstance(mesh, DeviceMesh):
        raise UsageError(
            f"mesh is of type {type(mesh).__name__}",
            expected='a DeviceMesh, such as torch.distributed.init_device_mesh("cpu", (2,))',
        )
    if mesh.ndim != 1:
        names = ", ".join(mesh.mesh_dim_names or ())
        raise UsageError(
            f"the mesh has {mesh.ndim} axes{f' ({names})' if names else ''}",
            expected='one axis: mesh["tp"] of a mesh with names',
        )
    if mesh.get_coordinate() is None:
        raise UsageError(f"rank {dist.get_rank()} is not in the mesh {mesh.mesh.tolist()}")


def _check_widths(found: Mapping[str, Sharded], tp: int) -> None:
    widths = {name: sharded.width for name, sharded in found.items()}
    faults = {
        width: f"{width} of {_called(name)} does not divide by {tp}; the nearest width is"
        f" {-(-width // tp) * tp} (zero rows of gate and up, zero columns of down)"
        for name, width in reversed(widths.items())
        if width % tp
    }
    if faults:
        largest = max(n for n in range(1, tp) if not any(w % n for w in widths.values()))
        raise UsageError(
            f"cannot be split over {tp} tensor-parallel ranks: intermediate_size "
            + "; ".join(reversed(faults.values())),
            expected="widths to divide by the number of ranks",
            remedy=f"use tp {largest}, the largest that divides",
        )


def _called(name: str) -> str:
    return name or "the module"


# ---- what every rank has whole ------------------------------------------------------------------


class _SumGradient:
    """A parameter's hook: its gradient from this rank's rows becomes that of all rows."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh

    def __call__(self, grad: Tensor) -> Tensor:
        return summed(grad, self.mesh).to(grad.dtype)


def _replicate(module: nn.Module, region: Region) -> None:
    """Give plain parameters and buffers the first rank's values, and in a sequence-parallel
    module the sum of the ranks' gradients."""
    group = region.mesh.get_group()
    for _, tensor in _tensors(module):
        if isinstance(tensor, DTensor):
            continue
        if not tensor.is_meta:
            with torch.no_grad():
                data = tensor.detach().contiguous()
                dist.broadcast(data, group_src=0, group=group)
                tensor.copy_(data)
        if region.sequence and isinstance(tensor, nn.Parameter):
            # A frozen parameter takes no hook, and may be thawed later.
            needed, parameter = tensor.requires_grad, cast(Any, tensor)
            parameter.requires_grad_(True).register_hook(_SumGradient(region.mesh))
            parameter.requires_grad_(needed)


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
