"""Whether a projection is what its parameters say, or something that must be called."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from gateup.nn.linear import QuantLinear
from gateup.ops import packed
from gateup.ops.options import MLPOptions
from gateup.ops.packed import PackedWeight
from gateup.ops.tracing import differentiable

Linear = tuple[Tensor, Tensor | None]

# A hook sees a module's call; with any of these the call must take place.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
# The same for hooks on every module; a private name of torch.
_any_global_hook: Any = getattr(torch_module, "_has_any_global_hook", lambda: False)


def parameters_of(*projections: nn.Module) -> tuple[Linear, ...] | None:
    """(weight, bias) of each; None when any of them must be called as a module instead.

    So it is with adapters (LoRA), quantised, sparse or offloaded weights, parametrizations, parts
    sharded on their own, and hooks: their weight alone does not say what they compute.
    """
    if _any_global_hook() or any(why_not_plain(p) for p in projections):
        return None
    return tuple((p.weight, p.bias) for p in projections)  # type: ignore[misc]


def blocks_of(*projections: nn.Module) -> tuple[PackedWeight, ...] | None:
    """The weights of layers that do nothing beside x Wᵀ with W in blocks; None otherwise."""
    if _any_global_hook():
        return None
    if not all(type(p) is QuantLinear and p.bias is None and _bare(p) is None for p in projections):
        return None
    return tuple(p.packed for p in projections)  # type: ignore[misc]


def why_not_plain(projection: nn.Module) -> str | None:
    """None for an nn.Linear whose weight says it all; otherwise the reason in words."""
    reason = why_called(projection)
    if reason is not None:
        return reason
    weight: Any = projection.weight
    # A subclass of Tensor (DTensor, torchao's) brings its own F.linear.
    if type(weight) not in (Tensor, nn.Parameter):
        return f"its weight is a {type(weight).__name__}"
    if weight.layout is not torch.strided:
        return f"its weight is {str(weight.layout).removeprefix('torch.')}"
    if not torch.is_floating_point(weight):
        return f"its weight is {weight.dtype}"
    return None


def is_bare(module: nn.Module) -> bool:
    """Whether a call of the module is a call of its class's forward and nothing else."""
    return _bare(module) is None


def why_called(projection: nn.Module) -> str | None:
    """None for an nn.Linear that does nothing beside its formula, whatever its weight is."""
    kind = type(projection)
    if kind is not nn.Linear:
        return f"it is a {kind.__module__}.{kind.__qualname__}, not a plain nn.Linear"
    return _bare(projection)


def _bare(projection: nn.Module) -> str | None:
    """None where a call of the module is a call of its class's forward and nothing else."""
    if "forward" in projection.__dict__:
        return "its forward was replaced"
    if any(len(getattr(projection, hooks)) for hooks in _HOOKS):
        return "it has hooks"
    return None


def in_blocks(
    x: Tensor,
    gate: nn.Module,
    up: nn.Module,
    down: nn.Module,
    act: str,
    options: MLPOptions,
) -> Tensor | None:
    """The gated MLP by one kernel on weights in blocks; None where the modules must be called.

    The kernel rounds once ("wide"), keeps nothing for a gradient and knows no tiles.
    """
    tiled = options.tile is not None or options.budget is not None
    if options.rounding != "wide" or tiled or differentiable(x):
        return None
    weights = blocks_of(gate, up, down)
    if weights is None:
        return None
    gate_w, up_w, down_w = weights
    return packed.gated_mlp(x, gate_w, up_w, down_w, act)
