"""act(gate) ⊙ up, the elementwise middle of the gated MLP, as torch custom ops.

Computed in float32 and rounded once to the inputs' dtype, whichever backend serves.
"""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor

from gateup.errors import UsageError
from gateup.model.layout import GateUpLayout
from gateup.ops import composed, dispatch
from gateup.ops.activations import activation
from gateup.ops.arguments import are_tensors, floating, same, twice_differentiated
from gateup.ops.layouts import CONCAT, even_width, halves, word
from gateup.ops.options import Rounding
from gateup.ops.rows import flat
from gateup.ops.tracing import transformed


def act_and_mul(gate_up: Tensor, *, act: str = "silu", layout: GateUpLayout = CONCAT) -> Tensor:
    """act(gate) ⊙ up of one fused tensor [..., 2I] -> [..., I].

    Raises UsageError for an odd width, an unknown activation, a layout that is not of one fused
    tensor, or a tensor that is not floating point.
    """
    activation(act)
    are_tensors(gate_up=gate_up)
    floating("gate_up", gate_up)
    if gate_up.dim() == 0:
        raise UsageError("gate_up is a single number", expected="shape [..., 2·I]")
    even_width(gate_up.shape[-1], "gate_up")
    form = word(layout)
    if transformed():
        return composed.act_and_mul(*halves(gate_up, form), act, eager=False)
    result: Tensor = torch.ops.gateup.act_and_mul(gate_up, act, form)
    return result


def act_and_mul_split(
    gate: Tensor, up: Tensor, act: str = "silu", *, rounding: Rounding = "wide"
) -> Tensor:
    """act(gate) ⊙ up of two tensors [..., I]; keeps the two of them for backward.

    rounding="hf" rounds act(gate) and every step of backward, as eager torch does, to its bits.
    Raises UsageError when they differ in shape, dtype or device, for an unknown activation, or
    for tensors that are not floating point.
    """
    activation(act)
    are_tensors(gate=gate, up=up)
    if rounding not in get_args(Rounding):
        raise UsageError(f"rounding is {rounding!r}", expected='"hf" or "wide"')
    floating("gate", gate)
    same("up", up, "gate", gate)
    if gate.shape != up.shape:
        raise UsageError(f"gate has shape {tuple(gate.shape)}, up {tuple(up.shape)}")
    eager = rounding == "hf"
    if transformed():
        return composed.act_and_mul(gate, up, act, eager=eager)
    result: Tensor = torch.ops.gateup.act_and_mul_split(gate, up, act, eager)
    return result


@torch.library.custom_op("gateup::act_and_mul", mutates_args=())
def _fused(gate_up: Tensor, act: str, layout: str) -> Tensor:
    gate, up = halves(flat(gate_up), layout)
    out = gate_up.new_empty(gate.shape)
    if out.numel():
        dispatch.choose(act, gate, out).forward(gate, up, act, out)
    return out.view(*gate_up.shape[:-1], out.shape[-1])


@_fused.register_fake
def _(gate_up: Tensor, act: str, layout: str) -> Tensor:
    return gate_up.new_empty((*gate_up.shape[:-1], gate_up.shape[-1] // 2))


@torch.library.custom_op("gateup::act_and_mul_backward", mutates_args=())
def _fused_backward(grad: Tensor, gate_up: Tensor, act: str, layout: str) -> Tensor:
    gate, up = halves(flat(gate_up), layout)
    d_fused = gate_up.new_empty((gate.shape[0], gate_up.shape[-1]))
    d_gate, d_up = halves(d_fused, layout)
    if grad.numel():
        backend = dispatch.choose(act, gate, d_gate)
        backend.backward(flat(grad), gate, up, act, d_gate, d_up, None)
    return d_fused.view(gate_up.shape)


@_fused_backward.register_fake
def _(grad: Tensor, gate_up: Tensor, act: str, layout: str) -> Tensor:
    return gate_up.new_empty(gate_up.shape)


@torch.library.custom_op("gateup::act_and_mul_split", mutates_args=())
def _split(gate: Tensor, up: Tensor, act: str, eager: bool) -> Tensor:
    if eager:
        return activation(act).gated(gate, up)
    first = flat(gate)
    out = gate.new_empty(first.shape)
    if out.numel():
        dispatch.choose(act, first, out).forward(first, flat(up), act, out)
    return out.view(gate.shape)


@_split.register_fake
def _(gate: Tensor, up: Tensor, act: str, eager: bool) -> Tensor:
    return gate.new_empty(gate.shape)


@torch.library.custom_op("gateup::act_and_mul_split_backward", mutates_args=())
def _split_backward(
    grad: Tensor, gate: Tensor, up: Tensor, act: str, eager: bool
) -> tuple[Tensor, Tensor]:
    if eager:
        d_gate, d_up = activation(act).gated_backward(grad, gate, up)
        return d_gate.clone() if d_gate is grad else d_gate, d_up
    first = flat(gate)
    d_gate, d_up = gate.new_empty(first.shape), gate.new_empty(first.shape)
    if grad.numel():
        backend = dispatch.choose(act, first, d_gate)
        backend.backward(flat(grad), first, flat(up), act, d_gate, d_up, None)
    return d_gate.view(gate.shape), d_up.view(gate.shape)


@_split_backward.register_fake
def _(grad: Tensor, gate: Tensor, up: Tensor, act: str, eager: bool) -> tuple[Tensor, Tensor]:
    return gate.new_empty(gate.shape), gate.new_empty(gate.shape)


def _keep_fused(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    gate_up, ctx.act, ctx.layout = inputs
    ctx.save_for_backward(gate_up)


def _differentiate_fused(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (gate_up,) = ctx.saved_tensors
    back = torch.ops.gateup.act_and_mul_backward(grad, gate_up, ctx.act, ctx.layout)
    return back, None, None


def _keep_split(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    gate, up, ctx.act, ctx.eager = inputs
    ctx.save_for_backward(gate, up)


def _differentiate_split(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    gate, up = ctx.saved_tensors
    d_gate, d_up = torch.ops.gateup.act_and_mul_split_backward(grad, gate, up, ctx.act, ctx.eager)
    return d_gate, d_up, None, None


_fused.register_autograd(_differentiate_fused, setup_context=_keep_fused)
_split.register_autograd(_differentiate_split, setup_context=_keep_split)
_fused_backward.register_autograd(twice_differentiated("act_and_mul"))
_split_backward.register_autograd(twice_differentiated("act_and_mul_split"))
