"""Whether a projection is what its parameters say, or something around them."""

from __future__ import annotations

from torch import Tensor, nn

Linear = tuple[Tensor, Tensor | None]

# A hook sees a module's call; with any of these the call must take place.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def parameters_of(*projections: nn.Module) -> tuple[Linear, ...] | None:
    """(weight, bias) of each; None when any of them must be called as a module instead.

    So it is with adapters (LoRA), quantised and offloaded weights, parts sharded on their own,
    and hooks: their weight alone does not say what they compute.
    """
    found = []
    for module in projections:
        if not isinstance(module, nn.Linear) or not _plain(module):
            return None
        found.append((module.weight, module.bias))
    return tuple(found)


def _plain(linear: nn.Linear) -> bool:
    if type(linear).forward is not nn.Linear.forward or "forward" in linear.__dict__:
        return False
    if any(len(getattr(linear, hooks)) for hooks in _HOOKS):
        return False
    # A subclass of Tensor (DTensor, torchao's) brings its own F.linear.
    return type(linear.weight) in (Tensor, nn.Parameter) and linear.weight.is_floating_point()
