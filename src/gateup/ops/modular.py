"""The gated MLP when a projection is a module of its own kind: with LoRA, quantised, anything.

The modules are called as they are, so whatever they do (adapters, dropout, dequantisation) is
done. What backward keeps is then up to them too: "all" keeps what the three modules keep, gate
and up; "gate_up" drops down_proj's and the product; "input" drops everything but x. What was
dropped is computed again in backward, with the same random numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gateup.errors import UsageError
from gateup.model.layout import GateUpLayout
from gateup.ops.act_and_mul import act_and_mul_split
from gateup.ops.activations import activation
from gateup.ops.arguments import are_tensors, floating
from gateup.ops.layouts import CONCAT, even_width, halves, word
from gateup.ops.mlp_ops import autocast_dtype
from gateup.ops.options import MLPOptions, Rounding
from gateup.ops.recompute import recomputed

_DEFAULT = MLPOptions()


def gated_mlp_modules(
    x: Tensor,
    gate_proj: nn.Module,
    up_proj: nn.Module,
    down_proj: nn.Module,
    *,
    act: str = "silu",
    options: MLPOptions = _DEFAULT,
) -> Tensor:
    """down_proj(act(gate_proj(x)) ⊙ up_proj(x)). x [..., H] -> y [..., H].

    Each module maps the last axis of any [..., ·], token by token. rounding "hf" has the bits of
    transformers' eager MLP over the same modules when nothing is tiled; "wide" rounds act ⊙ up
    once, from what the modules return, and so do tiles. Every parameter's gradient is returned
    once, summed over tiles in float32. Raises UsageError for an unknown activation, an x that is
    not floating point, or a budget where gate_proj does not tell its out_features.
    """
    body = _Split(gate_proj, up_proj, _Finish(down_proj, act, options))
    return _run(x, body, act, gate_proj, "gate_proj", options)


def gated_mlp_fused_modules(
    x: Tensor,
    gate_up_proj: nn.Module,
    down_proj: nn.Module,
    *,
    layout: GateUpLayout = CONCAT,
    act: str = "silu",
    options: MLPOptions = _DEFAULT,
) -> Tensor:
    """The same with one module for gate and up, whose output [..., 2I] lies as `layout` says."""
    body = _Fused(gate_up_proj, word(layout), _Finish(down_proj, act, options))
    return _run(x, body, act, gate_up_proj, "gate_up_proj", options)


def _run(
    x: Tensor, body: nn.Module, act: str, first: nn.Module, name: str, options: MLPOptions
) -> Tensor:
    activation(act)
    are_tensors(x=x)
    floating("x", x)
    tile = _tile(x, first, name, options)
    if tile is None and (options.save != "input" or not torch.is_grad_enabled()):
        y: Tensor = body(x)
        return y
    return recomputed(body, x, tile=tile, keep=options.save != "input")


class _Product(nn.Module):
    """down(act(gate) ⊙ up)"""

    def __init__(self, down: nn.Module, act: str, rounding: Rounding) -> None:
        super().__init__()
        self.down, self.act, self.rounding = down, act, rounding

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        if gate.dtype == up.dtype:
            product = act_and_mul_split(gate, up, self.act, rounding=self.rounding)
        else:
            # Under autocast a module may give float32 beside another's bf16: as torch mixes them.
            product = activation(self.act).gated(gate, up)
        y: Tensor = self.down(product)
        return y


class _Finish(nn.Module):
    """The same, keeping what `options.save` says."""

    def __init__(self, down: nn.Module, act: str, options: MLPOptions) -> None:
        super().__init__()
        # Tiles do not have eager's bits anyway, and each rounds its own share of the weights'
        # gradients; rounded at every step besides, they miss plain torch's accuracy (by 7 %).
        tiled = options.tile is not None or options.budget is not None
        self.product = _Product(down, act, "wide" if tiled else options.rounding)
        self.keep_product = options.save != "gate_up"

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        if self.keep_product or not torch.is_grad_enabled():
            y: Tensor = self.product(gate, up)
            return y
        return recomputed(self.product, gate, up, tile=None, keep=False)


class _Split(nn.Module):
    """The formula over modules, under one roof so that their parameters have names."""

    def __init__(self, gate: nn.Module, up: nn.Module, finish: _Finish) -> None:
        super().__init__()
        self.gate, self.up, self.finish = gate, up, finish

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.finish(self.gate(x), self.up(x))
        return y


class _Fused(nn.Module):
    """The same with gate and up in one."""

    def __init__(self, gate_up: nn.Module, layout_word: str, finish: _Finish) -> None:
        super().__init__()
        self.gate_up, self.layout_word, self.finish = gate_up, layout_word, finish

    def forward(self, x: Tensor) -> Tensor:
        fused: Tensor = self.gate_up(x)
        even_width(fused.shape[-1], "gate_up_proj's output")
        y: Tensor = self.finish(*halves(fused, self.layout_word))
        return y


def _tile(x: Tensor, first: nn.Module, name: str, options: MLPOptions) -> int | None:
    if options.budget is None:
        return options.tile
    width = getattr(first, "out_features", None)
    if not isinstance(width, int):
        raise UsageError(
            f"budget is {options.budget} bytes, but {name}, a {type(first).__name__}, has no"
            " out_features to say how wide a token is",
            remedy="give tile, in tokens",
        )
    width = width // 2 if name == "gate_up_proj" else width
    return options.tile_size(width, (autocast_dtype(x) or x.dtype).itemsize)
