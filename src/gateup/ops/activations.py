"""Activations of the gated MLP: values and derivatives in plain torch.

Every backward uses the operations, in the order, that autograd itself would use, so a fused
backward in the same dtype gives autograd's bits, in place or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gateup.errors import UsageError

# gpt-oss: the gate is clamped above, up on both sides; sigmoid(1.702·g) is the quick GELU's.
GPT_OSS_LIMIT, GPT_OSS_ALPHA = 7.0, 1.702

# torch's own kernels with their `out`; typed Any, because torch.ops is built at run time.
_aten: Any = torch.ops.aten
_nn: Any = torch._C._nn


class Unary(Protocol):
    """g -> act(g), written to `out` where one is given (it may be g)."""

    def __call__(self, g: Tensor, out: Tensor | None = None) -> Tensor: ...


class UnaryBackward(Protocol):
    """(d_value, g) -> d_g, written to `out` where one is given (it may be either input)."""

    def __call__(self, grad: Tensor, g: Tensor, out: Tensor | None = None) -> Tensor: ...


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

    def factor(self, up: Tensor) -> Tensor:
        """What act(gate) is multiplied by: up, or gpt-oss's clamped up plus one."""
        return up.clamp(min=-GPT_OSS_LIMIT, max=GPT_OSS_LIMIT) + 1 if self.clamped else up

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """act(gate) ⊙ up, shapes alike [..., I]; every step in the dtype of the inputs."""
        return self.value(gate) * self.factor(up)

    def up_gradient(self, d_factor: Tensor, up: Tensor) -> Tensor:
        """d_up from the factor's gradient, in place: none where gpt-oss's clamp cut up off."""
        if self.clamped:
            outside = (up < -GPT_OSS_LIMIT) | (up > GPT_OSS_LIMIT)
            d_factor.masked_fill_(outside, 0)
        return d_factor

    def gated_backward(self, grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        """(d_gate, d_up) of `gated` for the product's gradient `grad`, all [..., I]."""
        d_up = self.up_gradient(grad * self.value(gate), up)
        return self.gradient(grad * self.factor(up), gate), d_up


def _out(result: Tensor, out: Tensor | None) -> Tensor:
    return result if out is None else out.copy_(result)


def _silu(g: Tensor, out: Tensor | None = None) -> Tensor:
    result: Tensor = _nn.silu(g, out=out)
    return result


def _gelu(g: Tensor, out: Tensor | None = None) -> Tensor:
    result: Tensor = _nn.gelu(g, approximate="none", out=out)
    return result


def _gelu_tanh(g: Tensor, out: Tensor | None = None) -> Tensor:
    result: Tensor = _nn.gelu(g, approximate="tanh", out=out)
    return result


def _relu(g: Tensor, out: Tensor | None = None) -> Tensor:
    result: Tensor = torch.relu_(g) if out is g else _out(torch.relu(g), out)
    return result


def _relu2(g: Tensor, out: Tensor | None = None) -> Tensor:
    return _out(torch.square(F.relu(g)), out)


def _sigmoid(g: Tensor, out: Tensor | None = None) -> Tensor:
    result: Tensor = torch.sigmoid(g, out=out)
    return result


def _identity(g: Tensor, out: Tensor | None = None) -> Tensor:
    return _out(g, out)


def _gpt_oss(g: Tensor, out: Tensor | None = None) -> Tensor:
    g = g.clamp(max=GPT_OSS_LIMIT)
    return _out(g * torch.sigmoid(g * GPT_OSS_ALPHA), out)


def _gelu_backward(grad: Tensor, g: Tensor, out: Tensor | None = None) -> Tensor:
    return _into(_aten.gelu_backward, out, grad, g, approximate="none")


def _gelu_tanh_backward(grad: Tensor, g: Tensor, out: Tensor | None = None) -> Tensor:
    return _into(_aten.gelu_backward, out, grad, g, approximate="tanh")


def _relu_backward(grad: Tensor, g: Tensor, out: Tensor | None = None) -> Tensor:
    return _into(_aten.threshold_backward, out, grad, g, 0)


def _relu2_backward(grad: Tensor, g: Tensor, out: Tensor | None = None) -> Tensor:
    return _relu_backward(grad * (2 * F.relu(g)), g, out)


def _sigmoid_backward(grad: Tensor, g: Tensor, out: Tensor | None = None) -> Tensor:
    return _into(_aten.sigmoid_backward, out, grad, torch.sigmoid(g))


def _silu_backward(grad: Tensor, g: Tensor, out: Tensor | None = None) -> Tensor:
    return _into(_aten.silu_backward, out, grad, g)


def _identity_backward(grad: Tensor, g: Tensor, out: Tensor | None = None) -> Tensor:
    return _out(grad, out)


def _gpt_oss_backward(grad: Tensor, g: Tensor, out: Tensor | None = None) -> Tensor:
    bounded = g.clamp(max=GPT_OSS_LIMIT)
    sigmoid = torch.sigmoid(bounded * GPT_OSS_ALPHA)
    inner = _into(_aten.sigmoid_backward, None, grad * bounded, sigmoid) * GPT_OSS_ALPHA
    return _out((grad * sigmoid + inner).masked_fill_(g > GPT_OSS_LIMIT, 0), out)


def _into(kernel: Any, out: Tensor | None, *args: Any, **kwargs: Any) -> Tensor:
    """Call one of torch's backward kernels, with `out` as its result where one is given."""
    result: Tensor
    if out is None:
        result = kernel(*args, **kwargs)
    else:
        result = kernel.grad_input(*args, **kwargs, grad_input=out)
    return result


# The keys are those of gateup.model.spec.Activation.
ACTIVATIONS: Mapping[str, Act] = MappingProxyType(
    {
        act.name: act
        for act in (
            Act("silu", _silu, _silu_backward),
            Act("gelu", _gelu, _gelu_backward),
            Act("gelu_tanh", _gelu_tanh, _gelu_tanh_backward),
            Act("relu", _relu, _relu_backward),
            Act("relu2", _relu2, _relu2_backward),
            Act("sigmoid", _sigmoid, _sigmoid_backward),
            Act("identity", _identity, _identity_backward),
            Act("gpt_oss", _gpt_oss, _gpt_oss_backward, clamped=True),
        )
    }
)


def activation(name: str) -> Act:
    """The activation called `name`; UsageError for one that is not known."""
    found = ACTIVATIONS.get(name) if isinstance(name, str) else None
    if found is None:
        raise UsageError(
            f"activation {name!r} is not known", expected="one of " + ", ".join(ACTIVATIONS)
        )
    return found
