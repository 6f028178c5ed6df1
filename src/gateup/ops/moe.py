"""Mixture of experts: each token through its k experts' gated MLPs, weighted and added up.

Experts' weights are stacked, in any fused layout; tokens are sorted by expert, so that each expert
is one GEMM. Routing (which experts, with what weights) is `gateup.ops.routing`.

Letters: T tokens, k experts per token, E experts, H hidden_size, I intermediate_size.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from gateup.errors import UsageError
from gateup.model.layout import GateUpLayout
from gateup.ops import experts_grouped, experts_loop
from gateup.ops.activations import activation
from gateup.ops.arguments import (
    are_tensors,
    floating,
    refuse_transforms,
    same,
    shaped,
    twice_differentiated,
)
from gateup.ops.experts import Bank, How, Kept, Needs, empty_gradients, empty_kept
from gateup.ops.layouts import even_width, halves, word
from gateup.ops.mlp_ops import autocasts
from gateup.ops.options import MLPOptions, checked

STACKED = GateUpLayout(form="concat", stacked=True)
_DEFAULT = MLPOptions()
Combine = Literal["slots", "experts"]


class ExpertWeights(NamedTuple):
    """All experts of a layer, stacked.

    gate_up       [E, 2I, H], or [E, H, 2I] where the layout's orientation is "in_out"
    down          [E, H, I], or [E, I, H]
    gate_up_bias  [E, 2I], gate and up lying as in gate_up; or None
    down_bias     [E, H]; or None
    layout        how gate and up share gate_up: fused and stacked; None: `STACKED`
    """

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    layout: GateUpLayout | None = None


def moe(
    x: Tensor,
    index: Tensor,
    weights: Tensor,
    experts: ExpertWeights,
    *,
    act: str = "silu",
    options: MLPOptions = _DEFAULT,
    combine: Combine = "slots",
) -> Tensor:
    """Σ over a token's k experts of weight · down(act(gate(x)) ⊙ up(x)); y [T, H] in x's dtype.

    x        [T, H]
    index    [T, k], int64: each token's experts
    weights  [T, k]: in x's dtype or float32
    combine  with rounding "hf": whose steps are followed. "slots": a token's k results are added
             up at once, as transformers' grouped_mm does; "experts": one expert after another in
             x's dtype, as its eager loop does

    Under autocast, experts are computed in its dtype, but for "slots", which stays in theirs, as
    grouped_mm does. With a tile, an expert's rows are computed that many at a time. Saved for
    backward, per token: x (H), and k·2I with save "gate_up", k·(3I + H) with "all" (k·3I where
    `weights` need no gradient).

    Raises UsageError for tensors that do not fit, by name and with their shapes, and where
    torch.func or forward mode differentiates.
    """
    checked(options)
    if not isinstance(experts, ExpertWeights):
        raise UsageError(
            f"experts is of type {type(experts).__name__}",
            expected="gateup.ops.ExpertWeights(gate_up, down)",
        )
    refuse_transforms("moe", x, weights, *experts[:4])
    width = _check(x, index, weights, experts, act)
    if combine not in get_args(Combine):
        raise UsageError(f"combine is {combine!r}", expected='"slots" or "experts"')
    bank, mode = Bank(*experts[:4]), combine if options.rounding == "hf" else "wide"
    autocast = autocasts(x.device.type)
    # transformers' grouped_mm is no operation that autocast knows: its weights stay as they are.
    if autocast and mode != "slots" and x.dtype != torch.float64:
        bank = _cast(bank, torch.get_autocast_dtype(x.device.type), biases=mode != "wide")
    _agree(x, weights, bank, autocast)
    differentiated = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (x, weights, *bank)
    )
    keep = {"input": 0, "gate_up": 1, "all": 3 if weights.requires_grad else 2}[options.save]
    how = How(
        act,
        word_of(experts.layout or STACKED),
        # float32 and float64 have nothing wider to go to between the GEMMs.
        mode if bank.down.dtype.itemsize < 4 else combine,
        keep if differentiated else 0,
        options.tile_size(width, bank.down.dtype.itemsize) or 0,
    )
    y: Tensor = torch.ops.gateup.experts(x, index, weights, *bank, *how)[0]
    return y


def reference(
    x: Tensor,
    index: Tensor,
    weights: Tensor,
    experts: ExpertWeights,
    *,
    act: str = "silu",
) -> Tensor:
    """The definition of truth: token by token, expert by expert, differentiable at will."""
    _check(x, index, weights, experts, act)
    form, _, orientation = word_of(experts.layout or STACKED).partition(":")
    rows = []
    for t in range(x.shape[0]):
        total = torch.zeros_like(x[t])
        for slot, e in enumerate(index[t].tolist()):
            gate_up, down, b1, b2 = (None if w is None else w[e] for w in experts[:4])
            assert gate_up is not None
            assert down is not None
            if orientation == "in_out":
                gate_up, down = gate_up.t(), down.t()
            gate, up = halves(F.linear(x[t], gate_up, b1), form)
            total = total + weights[t, slot] * F.linear(activation(act).gated(gate, up), down, b2)
        rows.append(total)
    return torch.stack(rows) if rows else torch.zeros_like(x)


def word_of(layout: GateUpLayout) -> str:
    """A stacked layout as one word with its orientation; UsageError for any other."""
    if not layout.stacked:
        raise UsageError(f"layout {layout} is not stacked", expected="one tensor for all experts")
    fused = GateUpLayout(form=layout.form, order=layout.order)
    return f"{word(fused)}:{layout.orientation}"


def _check(
    x: Tensor,
    index: Tensor,
    weights: Tensor,
    experts: ExpertWeights,
    act: str,
) -> int:
    """I; UsageError naming the tensor that does not fit."""
    activation(act)
    are_tensors(x=x, index=index, weights=weights, gate_up=experts.gate_up, down=experts.down)
    for name, tensor in (("x", x), ("weights", weights), *_named(Bank(*experts[:4]))):
        floating(name, tensor)
    if x.dim() != 2:
        raise UsageError(f"x has shape {tuple(x.shape)}", expected="[T, H]")
    if index.dim() != 2 or index.shape[0] != x.shape[0] or index.dtype != torch.int64:
        raise UsageError(
            f"index is {index.dtype}, shape {tuple(index.shape)}",
            expected=f"int64 [T, k] with T = {x.shape[0]}, as in x",
        )
    if not index.shape[1]:
        raise UsageError("index has no slots: k is 0", expected="k of 1 or more")
    shaped("weights", weights, tuple(index.shape), "T, k")
    gate_up, down, gate_up_bias, down_bias = experts[:4]
    if gate_up.dim() != 3:
        raise UsageError(f"gate_up has shape {tuple(gate_up.shape)}", expected="[E, ·, ·]")
    out_in = word_of(experts.layout or STACKED).endswith(":out_in")
    count, fused, hidden = gate_up.shape if out_in else (gate_up.shape[i] for i in (0, 2, 1))
    width = even_width(fused, "gate_up")
    if hidden != x.shape[1]:
        raise UsageError(
            f"gate_up takes inputs of width {hidden}, x has {x.shape[1]}",
            expected="gate_up " + ("[E, 2I, H]" if out_in else "[E, H, 2I]") + ", x [T, H]",
        )
    shape, letters = ((hidden, width), "E, H, I") if out_in else ((width, hidden), "E, I, H")
    shaped("down", down, (count, *shape), letters)
    shaped("gate_up_bias", gate_up_bias, (count, 2 * width), "E, 2I")
    shaped("down_bias", down_bias, (count, hidden), "E, H")
    return width


def _named(bank: Bank) -> list[tuple[str, Tensor]]:
    pairs = zip(Bank._fields, bank, strict=True)
    return [(name, tensor) for name, tensor in pairs if tensor is not None]


def _agree(x: Tensor, weights: Tensor, bank: Bank, autocast: bool) -> None:
    """One device; one dtype but under autocast, which leaves x and weights in any."""
    for name, tensor in _named(bank):
        if not autocast:
            same(name, tensor, "x", x)
        elif not name.endswith("bias"):
            same(name, tensor, "down", bank.down)
    same_device = weights.device == bank.down.device == x.device
    if not same_device or not (autocast or weights.dtype in (x.dtype, torch.float32)):
        raise UsageError(
            f"weights are {weights.dtype} on {weights.device}, x is {x.dtype} on {x.device}",
            expected="x's dtype or float32, one device",
        )


def _cast(bank: Bank, dtype: torch.dtype, *, biases: bool) -> Bank:
    """By casts that autograd sees. Without `biases` they stay: float32 sums take them as is."""
    b1, b2 = (t.to(dtype) if biases and t is not None else t for t in bank[2:])
    return Bank(bank.gate_up.to(dtype), bank.down.to(dtype), b1, b2)


# ---- torch custom ops ---------------------------------------------------------------------------


@torch.library.custom_op("gateup::experts", mutates_args=())
def _experts(
    x: Tensor,
    index: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
    act: str,
    layout: str,
    mode: str,
    keep: int,
    tile: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    bank, how = (
        Bank(gate_up, down, gate_up_bias, down_bias),
        How(act, layout, mode, keep, tile),
    )
    kernel = experts_grouped if how.grouped else experts_loop
    y, kept = kernel.forward(x, index, weights, bank, how)
    return y, *kept


@_experts.register_fake
def _(
    x: Tensor,
    index: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
    act: str,
    layout: str,
    mode: str,
    keep: int,
    tile: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    bank, how = (
        Bank(gate_up, down, gate_up_bias, down_bias),
        How(act, layout, mode, keep, tile),
    )
    return x.new_empty(x.shape), *empty_kept(index.numel(), bank, how)


@torch.library.custom_op("gateup::experts_backward", mutates_args=())
def _experts_backward(
    grad: Tensor,
    x: Tensor,
    index: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
    kept: list[Tensor],
    act: str,
    layout: str,
    mode: str,
    keep: int,
    tile: int,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    bank, how = (
        Bank(gate_up, down, gate_up_bias, down_bias),
        How(act, layout, mode, keep, tile),
    )
    kernel = experts_grouped if how.grouped else experts_loop
    grads = kernel.backward(grad, x, index, weights, bank, Kept(*kept), how, Needs(*needs))
    return tuple(grads)


@_experts_backward.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    index: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
    kept: list[Tensor],
    act: str,
    layout: str,
    mode: str,
    keep: int,
    tile: int,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    bank = Bank(gate_up, down, gate_up_bias, down_bias)
    return empty_gradients(x, weights, bank, Needs(*needs))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.how = inputs[7:12]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:7], *output[1:])


def _differentiate(ctx: Any, grad: Tensor | None, *unused: Any) -> tuple[Any, ...]:
    nothing = (None,) * 12
    if grad is None:
        return nothing
    x, index, weights, *rest = ctx.saved_tensors
    bank, kept = rest[:4], rest[4:]
    asked = ctx.needs_input_grad
    needs = [asked[i] for i in (0, 2, 3, 4, 5, 6)]
    op = torch.ops.gateup.experts_backward
    grads = op(grad, x, index, weights, *bank, kept, *ctx.how, needs)
    d_x, d_weights, *d_bank = (g if need else None for g, need in zip(grads, needs, strict=True))
    return (d_x, None, d_weights, *d_bank, *nothing[7:])


_experts.register_autograd(_differentiate, setup_context=_keep)
_experts_backward.register_autograd(twice_differentiated("moe"))
