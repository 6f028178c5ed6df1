"""What is checked before anything is computed, in the caller's own names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gateup.errors import UsageError
from gateup.model.config import whole
from gateup.ops.tracing import differentiable, forward_mode, transformed

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def are_tensors(**given: object) -> None:
    """UsageError unless every value is a tensor."""
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise UsageError(f"{name} is of type {type(value).__name__}", expected="a torch.Tensor")


def positive(name: str, value: object, unit: str = "") -> None:
    """UsageError unless `value` is a whole number, 1 or more (of tokens, bytes: `unit`)."""
    if not whole(value) or value < 1:
        of = f" of {unit}" if unit else ""
        raise UsageError(f"{name} is {value!r}", expected=f"a whole number{of}, 1 or more")


def refuse_dtype(dtype: object) -> None:
    """UsageError for a dtype to be made that the ops do not compute in; None is torch's default."""
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(
            f"dtype is {dtype!r}", expected="one of " + ", ".join(str(d) for d in DTYPES)
        )


def floating(name: str, tensor: Tensor) -> None:
    """UsageError unless `tensor` is strided and of a dtype the ops compute in."""
    if tensor.layout is not torch.strided:
        raise UsageError(
            f"{name} is {str(tensor.layout).removeprefix('torch.')}, shape {tuple(tensor.shape)}",
            expected="a dense (strided) tensor",
            remedy="make it dense with to_dense(); a sparse projection is served as a module"
            " (gateup.ops.modular)",
        )
    if tensor.dtype not in DTYPES:
        expected = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
        raise UsageError(
            f"{name} is {str(tensor.dtype).removeprefix('torch.')}, shape {tuple(tensor.shape)}",
            expected=f"one of {expected}",
            remedy="dequantise it first; a quantised projection is served as a module"
            " (gateup.ops.modular)",
        )


def same(name: str, tensor: Tensor, other: str, model: Tensor, *, mixed: bool = False) -> None:
    """UsageError unless `tensor` has the device of `model`, called `other`, and (unless `mixed`)
    its dtype."""
    if tensor.dtype != model.dtype and not mixed:
        raise UsageError(
            f"{name} is {_short(tensor)}, {other} is {_short(model)}", expected="one dtype"
        )
    if tensor.device != model.device:
        raise UsageError(
            f"{name} is on {tensor.device}, {other} on {model.device}", expected="one device"
        )


def shaped(name: str, tensor: Tensor | None, shape: tuple[int, ...], letters: str) -> None:
    """UsageError unless `tensor` (None passes) has `shape`, whose axes are called `letters`."""
    if tensor is not None and tuple(tensor.shape) != shape:
        raise UsageError(
            f"{name} has shape {tuple(tensor.shape)}", expected=f"[{letters}] = {shape}"
        )


Expected = tuple[str, "Tensor | None", tuple[int, ...], str]


def check(x: Tensor, *expected: Expected, mixed: bool) -> None:
    """UsageError unless x [..., H] and the tensors fit together.

    Each of `expected` is (name, tensor or None, shape, letters); the first is [·, H]. `mixed`:
    dtypes may differ (autocast brings them together).
    """
    first = expected[0]
    floating("x", x)
    if x.dim() == 0:
        raise UsageError("x is a single number", expected="shape [..., H]")
    for name, tensor, shape, letters in expected:
        if tensor is None:
            continue
        floating(name, tensor)
        shaped(name, tensor, shape, letters)
        same(name, tensor, "x", x, mixed=mixed)
    hidden = first[2][-1]
    if x.shape[-1] != hidden:
        raise UsageError(
            f"x has shape {tuple(x.shape)}, its last axis is {x.shape[-1]}",
            expected=f"{hidden}, as {first[0]} takes",
        )


def _short(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def refuse_transforms(name: str, *tensors: Tensor | None) -> None:
    """UsageError where torch.func or forward mode would differentiate what has no rule for it.

    A custom op drops tangents without a word, and its autograd is not torch.func's.
    """
    if transformed() and (forward_mode() or differentiable(*tensors)):
        raise UsageError(
            f"torch.func or forward-mode differentiation went through gateup.ops.{name}",
            expected="backward() or torch.autograd.grad",
        )


def twice_differentiated(name: str) -> Callable[..., Any]:
    """The derivative of a derivative: there is none in the fused ops, and it is said by name."""

    def refuse(ctx: Any, *grads: Any) -> Any:
        raise UsageError(
            f"gateup.ops.{name} was differentiated twice",
            expected="one backward pass (create_graph=False)",
            remedy="gateup.ops.reference computes the same and can be differentiated any number"
            " of times",
        )

    return refuse


class _Refusal(torch.autograd.Function):
    """Passes gradients through; differentiating them again raises by name."""

    @staticmethod
    def forward(ctx: Any, name: str, anchor: Tensor, *grads: Tensor) -> tuple[Tensor, ...]:
        ctx.name = name
        return tuple(grad.view_as(grad) for grad in grads)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return twice_differentiated(ctx.name)(ctx, *grads)


# torch does not type Function.apply.
_refuse: Callable[..., tuple[Tensor, ...]] = _Refusal.apply


def once(name: str, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The same gradients; where a graph of them is made (create_graph=True), one that refuses.

    Without it a gradient that depends on nothing which was kept would look like a constant, and
    a second derivative would silently come out too small.
    """
    known = [grad for grad in grads if grad is not None]
    if not torch.is_grad_enabled() or not known:
        return list(grads)
    anchor = torch.zeros((), requires_grad=True)
    results = iter(_refuse(name, anchor, *known))
    return [None if grad is None else next(results) for grad in grads]
