"""Products with packed weights as torch custom ops (what tracers see) and as autograd Functions
(what eager code calls, past the dispatcher; see `gateup.ops.mlp`).

The derivative of a product by x is a product with the transposed matrix, and the other way round,
so both can be differentiated any number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gateup.ops import packed_kernel as kernel
from gateup.ops.packed_weight import PackedWeight
from gateup.ops.rows import flat

# ---- eager ---------------------------------------------------------------------------------------


class _Products(torch.autograd.Function):
    """x [..., k] -> [..., n] of each weight. Nothing of x is kept."""

    @staticmethod
    def forward(
        ctx: Any, weights: Sequence[PackedWeight], x: Tensor, *biases: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.weights, ctx.dtype = weights, x.dtype
        ctx.bias_dtypes = [None if b is None else b.dtype for b in biases]
        return forward(weights, x, biases)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        _, of_x, *of_biases = ctx.needs_input_grad
        given = any(g is not None for g in grads)
        dx = _transposed(ctx.weights, ctx.dtype, *grads) if of_x and given else None
        sums = (
            _bias_grad(g, dtype) if needed and g is not None else None
            for g, dtype, needed in zip(grads, ctx.bias_dtypes, of_biases, strict=True)
        )
        return None, dx, *sums


class _Transposed(torch.autograd.Function):
    """Σ grad [..., n] @ W -> [..., k]."""

    @staticmethod
    def forward(
        ctx: Any, weights: Sequence[PackedWeight], dtype: torch.dtype, *grads: Tensor | None
    ) -> Tensor:
        ctx.weights, ctx.given = weights, [g is not None for g in grads]
        return _back(weights, dtype, grads)

    @staticmethod
    def backward(ctx: Any, ddx: Tensor) -> tuple[Any, ...]:
        again = differentiated(ctx.weights, ddx, *(None for _ in ctx.weights))
        pairs = zip(again, ctx.given, strict=True)
        return None, None, *(y if given else None for y, given in pairs)


# torch does not type Function.apply.
differentiated: Callable[..., tuple[Tensor, ...]] = _Products.apply
_transposed: Callable[..., Tensor] = _Transposed.apply


def forward(
    weights: Sequence[PackedWeight], x: Tensor, biases: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """x [..., k] -> [..., n] of each weight."""
    results = kernel.forward(flat(x), weights, biases)
    return tuple(y.view(*x.shape[:-1], y.shape[-1]) for y in results)


def _back(
    weights: Sequence[PackedWeight], dtype: torch.dtype, grads: Sequence[Tensor | None]
) -> Tensor:
    lead = next(g.shape[:-1] for g in grads if g is not None)
    rows = [None if g is None else flat(g) for g in grads]
    return kernel.backward(rows, weights, dtype).view(*lead, weights[0].k)


def _bias_grad(grad: Tensor, dtype: torch.dtype) -> Tensor:
    """Summed over tokens in float32, as the sums of a bias over many tokens need."""
    wide = torch.float64 if grad.dtype == torch.float64 else torch.float32
    return grad.flatten(0, -2).sum(0, dtype=wide).to(dtype)


# ---- traced --------------------------------------------------------------------------------------


@torch.library.custom_op("gateup::packed_linear", mutates_args=())
def _linear(
    x: Tensor, data: Tensor, bias: Tensor | None, type_: str, n: int, k: int, terms: int
) -> Tensor:
    """x [..., k] -> [..., n]; data and what follows are PackedWeight's fields."""
    return forward([PackedWeight(type_, n, k, data, terms)], x, [bias])[0]


@_linear.register_fake
def _(
    x: Tensor, data: Tensor, bias: Tensor | None, type_: str, n: int, k: int, terms: int
) -> Tensor:
    return x.new_empty((*x.shape[:-1], n))


@torch.library.custom_op("gateup::packed_linear_backward", mutates_args=())
def _linear_backward(grad: Tensor, data: Tensor, type_: str, n: int, k: int, terms: int) -> Tensor:
    """grad [..., n] -> [..., k] in its dtype."""
    return _back([PackedWeight(type_, n, k, data, terms)], grad.dtype, [grad])


@_linear_backward.register_fake
def _(grad: Tensor, data: Tensor, type_: str, n: int, k: int, terms: int) -> Tensor:
    return grad.new_empty((*grad.shape[:-1], k))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, data, bias, *ctx.rest = inputs
    ctx.save_for_backward(data)
    ctx.bias_dtype = None if bias is None else bias.dtype


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (data,) = ctx.saved_tensors
    dx = None
    if ctx.needs_input_grad[0]:
        dx = torch.ops.gateup.packed_linear_backward(grad, data, *ctx.rest)
    of_bias = _bias_grad(grad, ctx.bias_dtype) if ctx.needs_input_grad[2] else None
    return dx, None, of_bias, *(None for _ in ctx.rest)


def _keep_again(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, data, *ctx.rest = inputs
    ctx.save_for_backward(data)


def _differentiate_again(ctx: Any, ddx: Tensor) -> tuple[Any, ...]:
    (data,) = ctx.saved_tensors
    return (
        torch.ops.gateup.packed_linear(ddx, data, None, *ctx.rest),
        None,
        *(None for _ in ctx.rest),
    )


_linear.register_autograd(_differentiate, setup_context=_keep)
_linear_backward.register_autograd(_differentiate_again, setup_context=_keep_again)


@torch.library.custom_op("gateup::packed_gated_mlp", mutates_args=())
def _gated_mlp(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    types: str,
    sizes: list[int],
    terms: list[int],
    act: str,
) -> Tensor:
    """x [..., H] -> [..., H_out]. types: of gate, up, down with spaces between; sizes I, H, H_out.

    Without a derivative: where gradients flow, the three products are called one by one.
    """
    width, hidden, out = sizes
    shapes = ((width, hidden), (width, hidden), (out, width))
    weights = [
        PackedWeight(t, *shape, data, each)
        for t, shape, data, each in zip(types.split(), shapes, (gate, up, down), terms, strict=True)
    ]
    return gated(weights, x, act)


@_gated_mlp.register_fake
def _(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    types: str,
    sizes: list[int],
    terms: list[int],
    act: str,
) -> Tensor:
    return x.new_empty((*x.shape[:-1], sizes[2]))


def gated(weights: Sequence[PackedWeight], x: Tensor, act: str) -> Tensor:
    """x [..., H] -> [..., H_out]; weights gate, up, down."""
    return kernel.gated_mlp(flat(x), weights, act).view(*x.shape[:-1], weights[2].n)


@torch.library.custom_op("gateup::packed_rows", mutates_args=())
def _rows(
    data: Tensor,
    index: Tensor | None,
    type_: str,
    n: int,
    k: int,
    terms: int,
    dtype: torch.dtype,
) -> Tensor:
    """Rows of the matrix dequantised: index [...] -> [..., k]; all of them [n, k] without."""
    return rows(PackedWeight(type_, n, k, data, terms), index, dtype)


@_rows.register_fake
def _(
    data: Tensor,
    index: Tensor | None,
    type_: str,
    n: int,
    k: int,
    terms: int,
    dtype: torch.dtype,
) -> Tensor:
    lead = (n,) if index is None else index.shape
    return data.new_empty((*lead, k), dtype=dtype)


def rows(w: PackedWeight, index: Tensor | None, dtype: torch.dtype) -> Tensor:
    """As gateup::packed_rows."""
    if index is None:
        return kernel.take(w, None, dtype)
    return kernel.take(w, index.reshape(-1), dtype).view(*index.shape, w.k)
