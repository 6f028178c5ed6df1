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
from gateup.ops.act_and_mul import act_and_mul_split
from gateup.ops.activations import activation
from gateup.ops.arguments import floating
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
    once, from what the modules return. Every parameter's gradient is returned once, summed over
    tiles in float32. Raises UsageError for an unknown activation, an x that is not floating
    point, or a budget where gate_proj does not tell its out_features.
    """
    activation(act)
    floating("x", x)
    body = _Body(gate_proj, up_proj, down_proj, act, options)
    tile = _tile(x, gate_proj, options)
    if tile is None and (options.save != "input" or not torch.is_grad_enabled()):
        y: Tensor = body(x)
        return y
    return recomputed(body, x, tile=tile, keep=options.save != "input")


class _Finish(nn.Module):
    """down(act(gate) ⊙ up)"""

    def __init__(self, down: nn.Module, act: str, rounding: Rounding) -> None:
        super().__init__()
        self.down, self.act, self.rounding = down, act, rounding

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        product = act_and_mul_split(gate, up, self.act, rounding=self.rounding)
        y: Tensor = self.down(product)
        return y


class _Body(nn.Module):
    """The formula over modules, under one roof so that their parameters have names."""

    def __init__(
        self, gate: nn.Module, up: nn.Module, down: nn.Module, act: str, options: MLPOptions
    ) -> None:
        super().__init__()
        self.gate, self.up = gate, up
        self.finish = _Finish(down, act, options.rounding)
        self.keep_product = options.save != "gate_up"

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate(x), self.up(x)
        if self.keep_product or not torch.is_grad_enabled():
            y: Tensor = self.finish(gate, up)
            return y
        return recomputed(self.finish, gate, up, tile=None, keep=False)


def _tile(x: Tensor, gate_proj: nn.Module, options: MLPOptions) -> int | None:
    if options.budget is None:
        return options.tile
    width = getattr(gate_proj, "out_features", None)
    if not isinstance(width, int):
        raise UsageError(
            f"budget is {options.budget} bytes, but {type(gate_proj).__name__} has no"
            " out_features to say how wide a token is",
            remedy="give tile, in tokens",
        )
    return options.tile_size(width, (autocast_dtype(x) or x.dtype).itemsize)
