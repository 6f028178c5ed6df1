"""Whether a tracer looks on, so that the custom op must be called and not the kernel behind it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

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


def differentiable(*tensors: Tensor | None) -> bool:
    """Whether autograd would record an operation on them."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
