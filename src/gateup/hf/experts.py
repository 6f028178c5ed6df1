"""transformers' own experts implementations, with a gating between their projections that keeps
gate_up alone.

They run where every bit is asked for and one op cannot give it: batched_mm and GPU kernels, which
gateup has no equal of; experts spread over ranks; and the eager loop, whose experts each send x a
gradient of their own, to be added among those of x's other users in that order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from gateup.model.layout import GateUpLayout
from gateup.ops.activations import activation
from gateup.ops.layouts import halves, word
from gateup.ops.tracing import transformed

if TYPE_CHECKING:
    from gateup.hf.forward import Forward


class Gate(torch.autograd.Function):
    """act(gate) ⊙ up of gate_up [..., 2I], step by step in its dtype; keeps gate_up alone."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, layout: str, act: str) -> Tensor:
        ctx.save_for_backward(gate_up)
        ctx.layout, ctx.act = layout, act
        return activation(act).gated(*halves(gate_up, layout))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (gate_up,) = ctx.saved_tensors
        result = torch.empty_like(gate_up)
        d_gate, d_up = halves(result, ctx.layout)
        of_gate, of_up = activation(ctx.act).gated_backward(grad, *halves(gate_up, ctx.layout))
        d_gate.copy_(of_gate)
        d_up.copy_(of_up)
        return result, None, None


class ApplyGate:
    """Stands in an experts module for its `_apply_gate`, which its implementations call."""

    def __init__(self, forward: Forward, layout: GateUpLayout) -> None:
        self.forward, self.layout = forward, word(replace(layout, stacked=False))

    def __call__(self, gate_up: Tensor) -> Tensor:
        module: Any = self.forward.module
        result: Tensor
        if self.forward.changed:
            result = type(module)._apply_gate(module, gate_up)
        elif transformed():
            result = activation(self.forward.act).gated(*halves(gate_up, self.layout))
        else:
            act = self.forward.act
            result = Gate.apply(gate_up, self.layout, act)  # type: ignore[no-untyped-call]
        return result


def eager_loop(
    module: Any, apply_gate: ApplyGate, x: Tensor, index: Tensor, weights: Tensor
) -> Tensor:
    """Expert by expert, as transformers' eager experts do, which do not call `_apply_gate`.

    x [T, H]; index, weights [T, k] -> [T, H]
    """
    gate_ups, downs = module.gate_up_proj.unbind(0), module.down_proj.unbind(0)
    biases = [getattr(module, f"{name}_bias", None) for name in ("gate_up_proj", "down_proj")]
    out = torch.zeros_like(x)
    for e in range(module.num_experts):
        # Slots first, tokens second: the order in which sums are formed.
        slot, token = (index == e).t().nonzero(as_tuple=True)
        if not len(token):
            continue
        gate_up = _project(x[token], gate_ups[e], biases[0], e)
        y = _project(apply_gate(gate_up), downs[e], biases[1], e)
        out.index_add_(0, token, (y * weights[token, slot, None]).to(out.dtype))
    return out


def _project(x: Tensor, weight: Tensor, bias: Tensor | None, expert: int) -> Tensor:
    """gpt-oss's weights lie [in, out] and have biases; the others' [out, in] and have none."""
    if bias is None:
        return F.linear(x, weight)
    return x @ weight + bias[expert]
