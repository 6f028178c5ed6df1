"""Activations of the gated MLP: values and derivatives in plain torch.

Every backward uses the operations, in the order, that autograd itself would use, so a fused
backward in the same dtype gives autograd's bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gateup.errors import UsageError

# gpt-oss: the gate is clamped above, up on both sides; sigmoid(1.702·g) is the quick GELU's.
GPT_OSS_LIMIT, GPT_OSS_ALPHA = 7.0, 1.702

# torch's own backward kernels; typed Any, because torch.ops is built at run time.
_aten: Any = torch.ops.aten

Unary = Callable[[Tensor], Tensor]
UnaryBackward = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Act:
    """One activation.

    value     act(g), elementwise
    gradient  (d_value, g) -> d_g
    clamped   gpt-oss's form, in which up is clamped too and one is added to it
    """

    name: str
    value: Unary
    gradient: UnaryBackward
    clamped: bool = False

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """act(gate) ⊙ up, shapes alike [..., I]; every step in the dtype of the inputs."""
        if self.clamped:
            return (_bounded(up) + 1) * self.value(gate)
        return self.value(gate) * up

    def gated_backward(self, grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        """(d_gate, d_up) of `gated` for the product's gradient `grad`, all [..., I]."""
        if self.clamped:
            factor = _bounded(up) + 1
            inside = (up >= -GPT_OSS_LIMIT) & (up <= GPT_OSS_LIMIT)
            d_up = torch.where(inside, grad * self.value(gate), torch.zeros_like(grad))
            return self.gradient(grad * factor, gate), d_up
        return self.gradient(grad * up, gate), grad * self.value(gate)


def _bounded(up: Tensor) -> Tensor:
    return up.clamp(min=-GPT_OSS_LIMIT, max=GPT_OSS_LIMIT)


def _gelu_tanh(g: Tensor) -> Tensor:
    return F.gelu(g, approximate="tanh")


def _gelu_backward(grad: Tensor, g: Tensor) -> Tensor:
    result: Tensor = _aten.gelu_backward(grad, g, approximate="none")
    return result


def _gelu_tanh_backward(grad: Tensor, g: Tensor) -> Tensor:
    result: Tensor = _aten.gelu_backward(grad, g, approximate="tanh")
    return result


def _relu_backward(grad: Tensor, g: Tensor) -> Tensor:
    result: Tensor = _aten.threshold_backward(grad, g, 0)
    return result


def _relu2(g: Tensor) -> Tensor:
    return torch.square(F.relu(g))


def _relu2_backward(grad: Tensor, g: Tensor) -> Tensor:
    return _relu_backward(grad * (2 * F.relu(g)), g)


def _sigmoid_backward(grad: Tensor, g: Tensor) -> Tensor:
    result: Tensor = _aten.sigmoid_backward(grad, torch.sigmoid(g))
    return result


def _silu_backward(grad: Tensor, g: Tensor) -> Tensor:
    result: Tensor = _aten.silu_backward(grad, g)
    return result


def _identity(g: Tensor) -> Tensor:
    return g


def _identity_backward(grad: Tensor, g: Tensor) -> Tensor:
    return grad


def _gpt_oss(g: Tensor) -> Tensor:
    g = g.clamp(max=GPT_OSS_LIMIT)
    return g * torch.sigmoid(g * GPT_OSS_ALPHA)


def _gpt_oss_backward(grad: Tensor, g: Tensor) -> Tensor:
    bounded = g.clamp(max=GPT_OSS_LIMIT)
    sigmoid = torch.sigmoid(bounded * GPT_OSS_ALPHA)
    inner = _aten.sigmoid_backward(grad * bounded, sigmoid) * GPT_OSS_ALPHA
    return torch.where(g <= GPT_OSS_LIMIT, grad * sigmoid + inner, torch.zeros_like(grad))


# The keys are those of gateup.model.spec.Activation.
ACTIVATIONS: Mapping[str, Act] = MappingProxyType(
    {
        act.name: act
        for act in (
            Act("silu", F.silu, _silu_backward),
            Act("gelu", F.gelu, _gelu_backward),
            Act("gelu_tanh", _gelu_tanh, _gelu_tanh_backward),
            Act("relu", F.relu, _relu_backward),
            Act("relu2", _relu2, _relu2_backward),
            Act("sigmoid", torch.sigmoid, _sigmoid_backward),
            Act("identity", _identity, _identity_backward),
            Act("gpt_oss", _gpt_oss, _gpt_oss_backward, clamped=True),
        )
    }
)


def activation(name: str) -> Act:
    """The activation called `name`; UsageError for one that is not known."""
    found = ACTIVATIONS.get(name)
    if found is None:
        raise UsageError(
            f"activation {name!r} is not known", expected="one of " + ", ".join(ACTIVATIONS)
        )
    return found
