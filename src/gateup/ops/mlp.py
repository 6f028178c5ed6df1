"""From checked tensors and options to the custom op: what backward will need, and the tile."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

import gateup.ops.mlp_ops  # noqa: F401  (registers gateup::mlp)
from gateup.ops.operands import Needs, Operands
from gateup.ops.options import MLPOptions


class Keep(NamedTuple):
    """What forward keeps for backward: x, the pre-activations, the product."""

    x: bool
    pre: bool
    product: bool


def mlp(x: Tensor, operands: Operands, form: str, act: str, options: MLPOptions) -> Tensor:
    """y [..., H] of tensors already checked; keeps for backward what `options.save` says.

    Nothing is kept for a gradient that nobody asked for: of frozen weights, or of a frozen x.
    """
    keep = keep_for(x, operands, options.save)
    tile = options.tile_size(operands.width, itemsize(x)) or 0
    wide = options.rounding == "wide"
    results = torch.ops.gateup.mlp(x, *operands, form, act, wide, tile, *keep)
    y: Tensor = results[0]
    return y


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


def itemsize(x: Tensor) -> int:
    """Bytes of an element of what x is computed in: autocast's dtype, or its own."""
    device = x.device.type
    if device in ("cpu", "cuda") and autocasts(x):
        return torch.get_autocast_dtype(device).itemsize
    return x.dtype.itemsize


def autocasts(x: Tensor) -> bool:
    """Whether autocast will change x's dtype."""
    device = x.device.type
    if not torch.amp.is_autocast_available(device):
        return False
    return torch.is_autocast_enabled(device) and x.dtype != torch.float64
