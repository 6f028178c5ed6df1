"""The MLP as two torch custom ops, forward and backward, for every form, rounding and tile.

gateup::mlp returns y and what was asked to be kept for backward; gateup::mlp_backward turns y's
gradient into the gradients that are needed. A tensor that is not kept or not needed comes back
with no elements: an op's schema has no optional results.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gateup.ops import exact, tiled
from gateup.ops.arguments import twice_differentiated
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
    keep_x: bool,
    keep_pre: bool,
    keep_product: bool,
    dtype: torch.dtype | None = None,
) -> Five:
    """(y, x cast to `dtype`, w1's output, w2's output, the product); see `Operands`, `tiled.How`.

    `dtype` is what x and the weights are cast to inside, None for their own: under autocast the
    weights' casts are then made again in backward, not kept.
    """
    compute = dtype or w1.dtype
    t = Operands(w1, w2, down, b1, b2, b_down).cast(compute)
    cast, how = x.to(compute), _how(form, act, wide, tile, compute)
    if x.numel() == 0:
        y, kept = _nothing(cast, t, keep_pre, keep_product)
    elif how.wide or how.tile:
        y, kept = tiled.forward(cast, t, how, keep_pre, keep_product)
    else:
        y, kept = exact.forward(cast, t, form, act, keep_pre, keep_product)
    kept_x = cast if keep_x and cast is not x else None
    none = x.new_empty((0, 0), dtype=compute)
    kx, pre1, pre2, product = (
        none.clone() if k is None else k.contiguous() for k in (kept_x, *kept)
    )
    return y.contiguous(), kx, pre1, pre2, product


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
    keep_x: bool,
    keep_pre: bool,
    keep_product: bool,
    dtype: torch.dtype | None = None,
) -> Five:
    compute, tokens, none = dtype or w1.dtype, x.shape[:-1].numel(), (0, 0)
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
    needs: list[bool],
    dtype: torch.dtype | None,
    x_dtype: torch.dtype,
) -> Seven:
    """Gradients of x, w1, w2, down, b1, b2, b_down, those that `needs` marks."""
    compute, wanted = dtype or w1.dtype, Needs(*needs)
    t = Operands(w1, w2, down, b1, b2, None).cast(compute)
    kept, how = Kept(pre1, pre2, product), _how(form, act, wide, tile, compute)
    second: Tensor | None = None
    if dy.numel() == 0:
        grads = _no_gradients(dy, t, x_dtype)
    elif how.wide or how.tile:
        grads = tiled.backward(dy, x, t, kept, how, wanted, x_dtype)
    else:
        grads, second = exact.backward(dy, x, t, kept, form, act, wanted)
    if grads.x is not None:
        dx = grads.x.to(x_dtype)
        grads = grads._replace(x=dx if second is None else dx.add_(second.to(x_dtype)))
    return _seven(grads, wanted, dy, w1.dtype, x_dtype)


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
    needs: list[bool],
    dtype: torch.dtype | None,
    x_dtype: torch.dtype,
) -> Seven:
    t = Operands(w1, w2, down, b1, b2, None)
    return _seven(_no_gradients(dy, t, x_dtype), Needs(*needs), dy, w1.dtype, x_dtype)


def _how(form: str, act: str, wide: bool, tile: int, dtype: torch.dtype) -> tiled.How:
    """float32 and float64 have nothing wider to go to between the GEMMs."""
    return tiled.How(form, act, wide and dtype.itemsize < 4, tile)


def _nothing(x: Tensor, t: Operands, keep_pre: bool, keep_product: bool) -> tuple[Tensor, Kept]:
    """Of no tokens."""
    y = x.new_empty((*x.shape[:-1], t.down.shape[0]))
    return y, Kept(
        x.new_empty((0, t.w1.shape[0])) if keep_pre else None,
        x.new_empty((0, t.w2.shape[0])) if keep_pre and t.w2 is not None else None,
        x.new_empty((0, t.width)) if keep_product else None,
    )


def _no_gradients(dy: Tensor, t: Operands, x_dtype: torch.dtype) -> Gradients:
    """Zeros of every gradient's shape: those of no tokens, and the fake op's."""
    return Gradients(
        dy.new_zeros((*dy.shape[:-1], t.w1.shape[1]), dtype=x_dtype),
        t.w1.new_zeros(t.w1.shape),
        None if t.w2 is None else t.w2.new_zeros(t.w2.shape),
        t.down.new_zeros(t.down.shape),
        t.w1.new_zeros((t.w1.shape[0],)),
        None if t.w2 is None else t.w2.new_zeros((t.w2.shape[0],)),
        t.down.new_zeros((t.down.shape[0],)),
    )


def _seven(
    grads: Gradients, needs: Needs, dy: Tensor, dtype: torch.dtype, x_dtype: torch.dtype
) -> Seven:
    """In the parameters' dtype, dense; no elements where not needed."""
    dx, *parameters = (
        grad.to(x_dtype if i == 0 else dtype).contiguous()
        if grad is not None and needed
        else dy.new_empty((0,), dtype=x_dtype if i == 0 else dtype)
        for i, (grad, needed) in enumerate(zip(grads, needs, strict=True))
    )
    g1, g2, gd, b1, b2, bd = parameters
    return dx, g1, g2, gd, b1, b2, bd


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Five) -> None:
    x, w1, w2, down, b1, b2, _, form, act, wide, tile, keep_x, _, _, dtype = inputs
    ctx.how = (form, act, wide, tile)
    ctx.dtype, ctx.x_dtype = dtype, x.dtype
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    kept_x, pre1, pre2, product = (k if k.dim() and k.shape[-1] else None for k in output[1:])
    kept = (kept_x if kept_x is not None else x) if keep_x else None
    ctx.save_for_backward(kept, w1, w2, down, b1, b2, pre1, pre2, product)


def _differentiate(ctx: Any, dy: Tensor | None, *unused: Any) -> tuple[Any, ...]:
    rest = (None,) * 8
    if dy is None:
        return (*(None,) * 7, *rest)
    needs = list(ctx.needs_input_grad[:7])
    grads: Iterable[Tensor] = torch.ops.gateup.mlp_backward(
        dy, *ctx.saved_tensors, *ctx.how, needs, ctx.dtype, ctx.x_dtype
    )
    return (*(g if needed else None for g, needed in zip(grads, needs, strict=True)), *rest)


_mlp.register_autograd(_differentiate, setup_context=_keep)
_mlp_backward.register_autograd(twice_differentiated("gated_mlp"))


def _autocast(x: Tensor, *args: Any) -> Any:
    """Computes in autocast's dtype; float64 stays as it is, as in torch's own autocast."""
    device = x.device.type
    dtype = None if x.dtype == torch.float64 else torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        return torch.ops.gateup.mlp(x, *args[:13], dtype)


# torch types neither Library nor its methods.
_Library: Any = torch.library.Library
_library = _Library("gateup", "FRAGMENT")
for _key in ("AutocastCPU", "AutocastCUDA"):
    _library.impl("mlp", _autocast, _key)
