"""Who looks on: a tracer, which must see the custom op and not the kernel behind it; a transform,
which must see torch's own operations; autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

_PLAIN = (Tensor, torch.nn.Parameter)
# Private names of torch, the only way to ask whether a tracer is at work.
_C: Any = torch._C
_TRACERS = tuple(
    getattr(_C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY", "FUNCTIONAL")
)


def traced(*tensors: Tensor | None) -> bool:
    """Under torch.compile, export, functorch, fake or meta tensors, or subclasses of Tensor."""
    if torch.compiler.is_compiling():
        return True
    if any(t is not None and (type(t) not in _PLAIN or t.is_meta) for t in tensors):
        return True
    if _C._are_functorch_transforms_active():
        return True
    return any(_C._get_dispatch_mode(tracer) is not None for tracer in _TRACERS)


def transformed() -> bool:
    """Under a transform of torch.func (grad, vmap, jvp, ...) or forward-mode differentiation."""
    if torch.compiler.is_compiling():
        return False
    return forward_mode() or bool(_C._are_functorch_transforms_active())


def forward_mode() -> bool:
    """Whether tangents may be about, which a custom op would silently drop."""
    level: int = forward_ad._current_level
    return level >= 0


def differentiable(*tensors: Tensor | None) -> bool:
    """Whether autograd would record an operation on them."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
