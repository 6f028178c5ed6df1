"""The MLP's forward and backward on plain tensors: which of the two ways, casts, empty batches."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gateup.ops import exact, tiled
from gateup.ops.operands import Gradients, Kept, Needs, Operands


class Call(NamedTuple):
    """How one call runs.

    form, act  of `operands.FORMS` and `activations.ACTIVATIONS`
    wide       float32 between the GEMMs
    tile       tokens at a time, 0 for all
    dtype      what x and the weights are cast to, None for their own (autocast's, otherwise):
               weights' casts are made again in backward, not kept
    """

    form: str
    act: str
    wide: bool
    tile: int
    dtype: torch.dtype | None

    def how(self, compute: torch.dtype) -> tiled.How:
        """float32 and float64 have nothing wider to go to between the GEMMs."""
        return tiled.How(self.form, self.act, self.wide and compute.itemsize < 4, self.tile)


class Keep(NamedTuple):
    """What forward keeps for backward: x, the pre-activations, the product."""

    x: bool
    pre: bool
    product: bool


def forward(
    x: Tensor, operands: Operands, call: Call, keep: Keep
) -> tuple[Tensor, Tensor | None, Kept]:
    """(y, x as cast where it was cast and is kept, what else is kept)."""
    compute = call.dtype or operands.w1.dtype
    t, cast, how = operands.cast(compute), x.to(compute), call.how(compute)
    if 0 in x.shape[:-1]:
        y, kept = _nothing(cast, t, keep)
    elif (how.wide or how.tile) and not _hollow(t):
        y, kept = tiled.forward(cast, t, how, keep.pre, keep.product)
    else:
        y, kept = exact.forward(cast, t, how.form, how.act, keep.pre, keep.product)
    return y.contiguous(), cast if keep.x and cast is not x else None, kept


def backward(
    dy: Tensor,
    x: Tensor | None,
    operands: Operands,
    kept: Kept,
    call: Call,
    needs: Needs,
    x_dtype: torch.dtype,
) -> Gradients:
    """The gradients that `needs` marks: x's in `x_dtype`, the others in the weights' dtype."""
    grads, second = backward_apart(dy, x, operands, kept, call, needs, x_dtype)
    if grads.x is None or second is None:
        return grads
    return grads._replace(x=grads.x.add_(second))


def backward_apart(
    dy: Tensor,
    x: Tensor | None,
    operands: Operands,
    kept: Kept,
    call: Call,
    needs: Needs,
    x_dtype: torch.dtype,
) -> tuple[Gradients, Tensor | None]:
    """The same, with w2's part of x's gradient not yet added where the way taken has it apart."""
    dtype = operands.w1.dtype
    compute = call.dtype or dtype
    t, how = operands.cast(compute), call.how(compute)
    second: Tensor | None = None
    if 0 in dy.shape[:-1]:
        grads = no_gradients(dy, t, x_dtype)
    elif (how.wide or how.tile) and not _hollow(t):
        grads = tiled.backward(dy, x, t, kept, how, needs, x_dtype)
    else:
        grads, second = exact.backward(dy, x, t, kept, how.form, how.act, needs)
    dx, *parameters = grads
    dx = None if dx is None else dx.to(x_dtype)
    cast = (None if grad is None else grad.to(dtype) for grad in parameters)
    wanted = zip((dx, *cast), needs, strict=True)
    return Gradients(*(grad if needed else None for grad, needed in wanted)), (
        None if second is None else second.to(x_dtype)
    )


def _hollow(t: Operands) -> bool:
    """Whether H or I is 0: biases and zeros, which torch's own operations give."""
    return not (t.w1.numel() and t.down.numel())


def _nothing(x: Tensor, t: Operands, keep: Keep) -> tuple[Tensor, Kept]:
    """Of no tokens."""
    y = x.new_empty((*x.shape[:-1], t.down.shape[0]))
    return y, Kept(
        x.new_empty((0, t.w1.shape[0])) if keep.pre else None,
        x.new_empty((0, t.w2.shape[0])) if keep.pre and t.w2 is not None else None,
        x.new_empty((0, t.width)) if keep.product else None,
    )


def no_gradients(dy: Tensor, t: Operands, x_dtype: torch.dtype) -> Gradients:
    """Zeros of every gradient's shape: those of no tokens, and what a fake op returns."""
    return Gradients(
        dy.new_zeros((*dy.shape[:-1], t.w1.shape[1]), dtype=x_dtype),
        t.w1.new_zeros(t.w1.shape),
        None if t.w2 is None else t.w2.new_zeros(t.w2.shape),
        t.down.new_zeros(t.down.shape),
        t.w1.new_zeros((t.w1.shape[0],)),
        None if t.w2 is None else t.w2.new_zeros((t.w2.shape[0],)),
        t.down.new_zeros((t.down.shape[0],)),
    )
