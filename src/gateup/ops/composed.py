"""The MLP of torch's own differentiable operations, for what an op of ours cannot follow.

torch.func's transforms (grad, vmap, jacrev, ...) and forward-mode differentiation ask every
operation for rules that a custom op does not have; without one a tangent would silently be zero.
"""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F
from torch import Tensor

from gateup.ops.activations import activation
from gateup.ops.operands import Operands, gate_and_up


def mlp(
    x: Tensor, operands: Operands, form: str, act: str, wide: bool, dtype: torch.dtype | None
) -> Tensor:
    """y [..., H]; arguments as in `kernel.Call`. Saves and tiles what torch does: H + 4I, none.

    Without `wide` each step is rounded, as in `exact`; with it float32 from the products on,
    rounded once.
    """
    chosen, compute = activation(act), dtype or operands.w1.dtype
    wide = wide and compute.itemsize < 4
    with contextlib.ExitStack() as stack:
        if dtype is not None:
            stack.enter_context(torch.autocast(x.device.type, enabled=False))
        x, t = x.to(compute), operands.cast(compute)
        if wide:
            x, t = x.float(), t.cast(torch.float32)
        pre1 = F.linear(x, t.w1, t.b1)
        pre2 = None if t.w2 is None else F.linear(x, t.w2, t.b2)
        if form == "plain":
            product = chosen.value(pre1)
        else:
            product = chosen.gated(*gate_and_up(form, pre1, pre2))
        if wide:
            product = product.to(compute).float()
        return F.linear(product, t.down, t.b_down).to(compute)


def act_and_mul(gate: Tensor, up: Tensor, act: str, *, eager: bool) -> Tensor:
    """act(gate) ⊙ up [..., I]; in float32 and rounded once unless `eager`."""
    chosen = activation(act)
    if eager or gate.dtype.itemsize >= 4:
        return chosen.gated(gate, up)
    return chosen.gated(gate.float(), up.float()).to(gate.dtype)
