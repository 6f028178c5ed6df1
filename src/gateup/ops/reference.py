"""The definition of truth: plain torch, differentiable any number of times.

In float64 on upcast inputs it is what every other path is measured against; in the inputs' own
dtype it is the plain low-precision path.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from gateup.ops.activations import activation


def act_and_mul(gate: Tensor, up: Tensor, act: str = "silu") -> Tensor:
    """act(gate) ⊙ up, shapes alike [..., I]."""
    return activation(act).gated(gate, up)


def gated_mlp(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    *,
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    act: str = "silu",
) -> Tensor:
    """down(act(gate(x)) ⊙ up(x)).

    x [..., H]; gate, up [I, H]; down [H, I]; gate_bias, up_bias [I]; down_bias [H].
    """
    product = act_and_mul(F.linear(x, gate, gate_bias), F.linear(x, up, up_bias), act)
    return F.linear(product, down, down_bias)


def classic_ffn(
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    b1: Tensor | None = None,
    b2: Tensor | None = None,
    act: str = "gelu",
) -> Tensor:
    """act(x W1ᵀ + b1) W2ᵀ + b2. x [..., H]; w1 [I, H]; w2 [H, I]; biases [I], [H]."""
    return F.linear(activation(act).value(F.linear(x, w1, b1)), w2, b2)
