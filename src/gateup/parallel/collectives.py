"""The four collectives of tensor parallelism, each with its gradient.

Sums are formed in float32 (float64 for float64) and rounded once: summed in bf16, each hop of a
ring would round, and from 8 ranks on the result errs more than one process's does. That costs
twice the bytes of bf16 on the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from gateup.ops.gemm import wide_dtype

# The operations behind torch.distributed's functional collectives, whose Python names change from
# release to release. torch.compile and CommDebugMode know them.
_c: Any = torch.ops._c10d_functional


def summed(partial: Tensor, mesh: DeviceMesh) -> Tensor:
    """Σ over ranks, in float32 at least, on every rank."""
    result: Tensor = _c.wait_tensor(_c.all_reduce(_wide(partial), "sum", _group(mesh)))
    return result


def gathered(rows: Tensor, mesh: DeviceMesh) -> Tensor:
    """[n, ...] of each rank -> [tp·n, ...], rank by rank."""
    every = _c.all_gather_into_tensor(rows.contiguous(), mesh.size(), _group(mesh))
    result: Tensor = _c.wait_tensor(every)
    return result


def scattered(partial: Tensor, mesh: DeviceMesh) -> Tensor:
    """[tp·n, ...] -> this rank's n rows of Σ over ranks, in float32 at least."""
    own = _c.reduce_scatter_tensor(_wide(partial), "sum", mesh.size(), _group(mesh))
    result: Tensor = _c.wait_tensor(own)
    return result


def _wide(partial: Tensor) -> Tensor:
    return partial.to(wide_dtype(partial.dtype)).contiguous()


def _group(mesh: DeviceMesh) -> str:
    name: str = mesh.get_group().group_name
    return name


class _Enter(torch.autograd.Function):
    """The same on every rank -> the same; its gradient is the sum of the ranks'."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: DeviceMesh) -> Tensor:
        ctx.mesh = mesh
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return leave(grad, ctx.mesh, False), None


class _Leave(torch.autograd.Function):
    """A part on each rank -> the sum, on every rank; `wide`: left in float32."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor, mesh: DeviceMesh, wide: bool) -> Tensor:
        ctx.mesh, ctx.dtype = mesh, partial.dtype
        total = summed(partial, mesh)
        return total if wide else total.to(partial.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return enter(grad.to(ctx.dtype), ctx.mesh), None, None


class _Gather(torch.autograd.Function):
    """Each rank's rows -> all rows, on every rank."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, mesh: DeviceMesh) -> Tensor:
        ctx.mesh = mesh
        return gathered(rows, mesh)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return scatter(grad, ctx.mesh, False), None


class _Scatter(torch.autograd.Function):
    """A part of all rows on each rank -> this rank's rows of the sum."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor, mesh: DeviceMesh, wide: bool) -> Tensor:
        ctx.mesh, ctx.dtype = mesh, partial.dtype
        total = scattered(partial, mesh)
        return total if wide else total.to(partial.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return gather(grad.to(ctx.dtype), ctx.mesh), None, None


# torch does not type Function.apply.
enter: Callable[..., Tensor] = _Enter.apply
leave: Callable[..., Tensor] = _Leave.apply
gather: Callable[..., Tensor] = _Gather.apply
scatter: Callable[..., Tensor] = _Scatter.apply


@dataclass(frozen=True)
class Region:
    """Where an MLP's width is spread over the ranks of `mesh`.

    sequence  False: x and y are whole on every rank; one all-reduce on the way out, one of x's
              gradient on the way back. True: each rank has its own rows of x and of y; an
              all-gather on the way in, a reduce-scatter on the way out, and the same back.
    """

    mesh: DeviceMesh
    sequence: bool

    def enter(self, rows: Tensor) -> Tensor:
        """[n, ...] -> all rows, on every rank."""
        return gather(rows, self.mesh) if self.sequence else enter(rows, self.mesh)

    def leave(self, partial: Tensor, *, wide: bool = False) -> Tensor:
        """Each rank's part of all rows -> [n, ...], in float32 if `wide`."""
        out = scatter if self.sequence else leave
        return out(partial, self.mesh, wide)

    def shared(self, parameter: Tensor) -> Tensor:
        """A parameter that every rank uses whole on the rows it has outside of the region.

        In float32 at least: its gradient's parts are summed before they are rounded.
        """
        wide = parameter.to(wide_dtype(parameter.dtype))
        return enter(wide, self.mesh) if self.sequence else wide
