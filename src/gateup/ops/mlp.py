"""From checked tensors and options to the kernel: what backward will need, the tile, the way in.

Tracers (torch.compile, export, fake and meta tensors, subclasses) see the custom op. Eager code
calls the same kernels from an autograd Function: the dispatcher's way through a Python op costs
15 µs a call more, beside 10 µs for torch's own small MLP at one token (benchmarks/overhead.py).
torch.func's transforms see torch's own operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gateup.ops import composed, kernel
from gateup.ops.arguments import once
from gateup.ops.kernel import Call, Keep
from gateup.ops.mlp_ops import autocast_dtype
from gateup.ops.operands import Kept, Needs, Operands
from gateup.ops.options import MLPOptions, checked
from gateup.ops.tracing import differentiable, traced, transformed


def mlp(x: Tensor, operands: Operands, form: str, act: str, options: MLPOptions) -> Tensor:
    """y [..., H] of tensors already checked; keeps for backward what `options.save` says.

    Nothing is kept for a gradient that nobody asked for: of frozen weights, or of a frozen x.
    """
    keep = keep_for(x, operands, checked(options).save)
    dtype, wide = autocast_dtype(x), options.rounding == "wide"
    tile = options.tile_size(operands.width, (dtype or x.dtype).itemsize) or 0
    if transformed():
        return composed.mlp(x, operands, form, act, wide, dtype)
    call = Call(form, act, wide, tile, dtype)
    if traced(x, *operands):
        y: Tensor = torch.ops.gateup.mlp(x, *operands, *call, list(keep))[0]
        return y
    if any(keep) or differentiable(x, *operands):
        again = x if operands.w2 is not None and x.requires_grad else None
        return _direct(call, keep, again, x, *operands)
    return _forward(x, operands, call, keep)[0]


def keep_for(x: Tensor, operands: Operands, save: str) -> Keep:
    """What `save` keeps of these tensors: see `MLPOptions.save`."""
    if not torch.is_grad_enabled():
        return Keep(False, False, False)
    needs = Needs(*(p is not None and p.requires_grad for p in (x, *operands)))
    weights = needs.w1 or needs.w2
    if save == "input":
        return Keep(needs.pre or needs.down, False, False)
    if save == "gate_up":
        return Keep(weights, needs.pre or needs.down, False)
    return Keep(weights, needs.pre, needs.down)


def _forward(
    x: Tensor, operands: Operands, call: Call, keep: Keep
) -> tuple[Tensor, Tensor | None, Kept]:
    if call.dtype is None:
        return kernel.forward(x, operands, call, keep)
    with torch.autocast(x.device.type, enabled=False):
        return kernel.forward(x, operands, call, keep)


class _Direct(torch.autograd.Function):
    """gateup::mlp without the dispatcher.

    x comes twice where gate and up are apart: autograd adds up's part and gate's part of its
    gradient one by one to what other users of x (a residual, a router) have sent, and sums in
    another order have other bits. Up's goes first, as the later of two linears.
    """

    @staticmethod
    def forward(
        ctx: Any, call: Call, keep: Keep, again: Tensor | None, x: Tensor, *operands: Any
    ) -> Tensor:
        t = Operands(*operands)
        y, cast, kept = _forward(x, t, call, keep)
        kept_x = (x if cast is None else cast) if keep.x else None
        ctx.call, ctx.x_dtype = call, x.dtype
        ctx.save_for_backward(kept_x, *t[:5], *kept)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        needs = Needs(*ctx.needs_input_grad[3:])
        x, w1, w2, down, b1, b2, *kept = ctx.saved_tensors
        operands = Operands(w1, w2, down, b1, b2, None)
        parts = (dy, x, operands, Kept(*kept), ctx.call, needs, ctx.x_dtype)
        with torch.no_grad():
            grads, second = kernel.backward_apart(*parts)
        return None, None, *once("gated_mlp", (second, *grads))


# torch does not type Function.apply.
_direct: Callable[..., Tensor] = _Direct.apply
