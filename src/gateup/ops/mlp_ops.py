"""The MLP as two torch custom ops, forward and backward: what torch.compile and export see.

gateup::mlp returns y and what was asked to be kept for backward; gateup::mlp_backward turns y's
gradient into the gradients that are needed. A tensor that is not kept or not needed comes back
with no elements: an op's schema has no optional results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gateup.ops import kernel
from gateup.ops.arguments import once, twice_differentiated
from gateup.ops.kernel import Call, Keep
from gateup.ops.operands import Gradients, Kept, Needs, Operands

Five = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
Seven = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@torch.library.custom_op("gateup::mlp", mutates_args=())
def _mlp(
    x: Tensor,
    w1: Tensor,
    w2: Tensor | None,
    down: Tensor,
    b1: Tensor | None,
    b2: Tensor | None,
    b_down: Tensor | None,
    form: str,
    act: str,
    wide: bool,
    tile: int,
    dtype: torch.dtype | None,
    keep: list[bool],
) -> Five:
    """(y, x cast to `dtype`, w1's output, w2's output, the product); see `Operands`, `Call`."""
    t, call = Operands(w1, w2, down, b1, b2, b_down), Call(form, act, wide, tile, dtype)
    y, kept_x, kept = kernel.forward(x, t, call, Keep(*keep))
    kx, pre1, pre2, product = (
        y.new_empty((0, 0)) if k is None else k.contiguous() for k in (kept_x, *kept)
    )
    return y, kx, pre1, pre2, product


@_mlp.register_fake
def _(
    x: Tensor,
    w1: Tensor,
    w2: Tensor | None,
    down: Tensor,
    b1: Tensor | None,
    b2: Tensor | None,
    b_down: Tensor | None,
    form: str,
    act: str,
    wide: bool,
    tile: int,
    dtype: torch.dtype | None,
    keep: list[bool],
) -> Five:
    compute, tokens, none = dtype or w1.dtype, math.prod(x.shape[:-1]), (0, 0)
    keep_x, keep_pre, keep_product = keep
    shapes = (
        (*x.shape[:-1], down.shape[0]),
        tuple(x.shape) if keep_x and compute != x.dtype else none,
        (tokens, w1.shape[0]) if keep_pre else none,
        (tokens, w2.shape[0]) if keep_pre and w2 is not None else none,
        (tokens, down.shape[1]) if keep_product else none,
    )
    y, kx, pre1, pre2, product = (x.new_empty(shape, dtype=compute) for shape in shapes)
    return y, kx, pre1, pre2, product


@torch.library.custom_op("gateup::mlp_backward", mutates_args=())
def _mlp_backward(
    dy: Tensor,
    x: Tensor | None,
    w1: Tensor,
    w2: Tensor | None,
    down: Tensor,
    b1: Tensor | None,
    b2: Tensor | None,
    pre1: Tensor | None,
    pre2: Tensor | None,
    product: Tensor | None,
    form: str,
    act: str,
    wide: bool,
    tile: int,
    dtype: torch.dtype | None,
    needs: list[bool],
    x_dtype: torch.dtype,
) -> Seven:
    """Gradients of x, w1, w2, down, b1, b2, b_down, those that `needs` marks."""
    t, call = Operands(w1, w2, down, b1, b2, None), Call(form, act, wide, tile, dtype)
    kept = Kept(pre1, pre2, product)
    grads = kernel.backward(dy, x, t, kept, call, Needs(*needs), x_dtype)
    return _seven(grads, Needs(*needs), dy, w1.dtype, x_dtype)


@_mlp_backward.register_fake
def _(
    dy: Tensor,
    x: Tensor | None,
    w1: Tensor,
    w2: Tensor | None,
    down: Tensor,
    b1: Tensor | None,
    b2: Tensor | None,
    pre1: Tensor | None,
    pre2: Tensor | None,
    product: Tensor | None,
    form: str,
    act: str,
    wide: bool,
    tile: int,
    dtype: torch.dtype | None,
    needs: list[bool],
    x_dtype: torch.dtype,
) -> Seven:
    grads = kernel.no_gradients(dy, Operands(w1, w2, down, b1, b2, None), x_dtype)
    return _seven(grads, Needs(*needs), dy, w1.dtype, x_dtype)


def _seven(
    grads: Gradients, needs: Needs, dy: Tensor, dtype: torch.dtype, x_dtype: torch.dtype
) -> Seven:
    """Dense; no elements where not needed."""
    dx, g1, g2, gd, b1, b2, bd = (
        grad.contiguous()
        if grad is not None and needed
        else dy.new_empty((0,), dtype=x_dtype if i == 0 else dtype)
        for i, (grad, needed) in enumerate(zip(grads, needs, strict=True))
    )
    return dx, g1, g2, gd, b1, b2, bd


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Five) -> None:
    x, w1, w2, down, b1, b2, _, form, act, wide, tile, dtype, keep = inputs
    ctx.call, ctx.x_dtype = Call(form, act, wide, tile, dtype), x.dtype
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    cast, pre1, pre2, product = (k if k.dim() and k.shape[-1] else None for k in output[1:])
    kept_x = (x if cast is None else cast) if keep[0] else None
    ctx.save_for_backward(kept_x, w1, w2, down, b1, b2, pre1, pre2, product)


def _differentiate(ctx: Any, dy: Tensor | None, *unused: Any) -> tuple[Any, ...]:
    rest = (None,) * 6
    if dy is None:
        return (*(None,) * 7, *rest)
    needs = list(ctx.needs_input_grad[:7])
    grads: Iterable[Tensor] = torch.ops.gateup.mlp_backward(
        dy, *ctx.saved_tensors, *ctx.call, needs, ctx.x_dtype
    )
    wanted = [g if needed else None for g, needed in zip(grads, needs, strict=True)]
    return (*once("gated_mlp", wanted), *rest)


_mlp.register_autograd(_differentiate, setup_context=_keep)
_mlp_backward.register_autograd(twice_differentiated("gated_mlp"))


def autocasts(device: str) -> bool:
    """Whether autocast is on for a device; meta tensors, say, have none."""
    return (device in _CAST or torch.amp.is_autocast_available(device)) and (
        torch.is_autocast_enabled(device)
    )


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """What autocast computes x in, None where it is off; float64 stays, as in torch's own."""
    device = x.device.type
    if not autocasts(device):
        return None
    return None if x.dtype == torch.float64 else torch.get_autocast_dtype(device)


def _autocast(x: Tensor, *args: Any) -> Any:
    *before, _, keep = args
    dtype = autocast_dtype(x)
    with torch.autocast(x.device.type, enabled=False):
        return torch.ops.gateup.mlp(x, *before, dtype, keep)


# Known to have autocast: asking torch costs 5 µs a call.
_CAST = ("cpu", "cuda")

# torch types neither Library nor its methods.
_Library: Any = torch.library.Library
_library = _Library("gateup", "FRAGMENT")
for _key in ("AutocastCPU", "AutocastCUDA"):
    _library.impl("mlp", _autocast, _key)
