"""down(act(gate(x)) ⊙ up(x)) in one op: exact, memory-bounded, trainable."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from gateup.errors import UsageError
from gateup.model.layout import GateUpLayout
from gateup.ops.activations import activation
from gateup.ops.arguments import are_tensors, check
from gateup.ops.layouts import even_width, word
from gateup.ops.mlp import mlp
from gateup.ops.mlp_ops import autocasts
from gateup.ops.operands import Operands
from gateup.ops.options import MLPOptions


class Weights(NamedTuple):
    """gate, up [I, H]; down [H, I]; gate_bias, up_bias [I]; down_bias [H]."""

    gate: Tensor
    up: Tensor
    down: Tensor
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None


_DEFAULT = MLPOptions()


def gated_mlp(
    x: Tensor, weights: Weights, *, act: str = "silu", options: MLPOptions = _DEFAULT
) -> Tensor:
    """x [..., H] -> y [..., H], x of one or more axes and of any strides.

    rounding="hf" without a tile has the bits of transformers' eager MLP in forward and backward.
    Raises UsageError naming the tensor when shapes, dtypes or devices do not fit together, when a
    tensor is not floating point, or for an unknown activation.
    """
    activation(act)
    if not isinstance(weights, Weights):
        weights = _weights(weights)
    gate, up, down, gate_bias, up_bias, down_bias = weights
    are_tensors(x=x, gate=gate, up=up, down=down)
    hidden = gate.shape[-1] if gate.dim() == 2 else 0
    width = gate.shape[0] if gate.dim() == 2 else 0
    check(
        x,
        ("gate", gate, (width, hidden), "I, H"),
        ("up", up, (width, hidden), "I, H"),
        ("down", down, (down.shape[0] if down.dim() else 0, width), "H, I"),
        ("gate_bias", gate_bias, (width,), "I"),
        ("up_bias", up_bias, (width,), "I"),
        ("down_bias", down_bias, (down.shape[0] if down.dim() else 0,), "H"),
        mixed=autocasts(x.device.type),
    )
    operands = Operands(gate, up, down, gate_bias, up_bias, down_bias)
    return mlp(x, operands, "split", act, options)


def _weights(given: object) -> Weights:
    """A tuple in their order as Weights; UsageError for anything else."""
    if not isinstance(given, tuple) or not 3 <= len(given) <= len(Weights._fields):
        raise UsageError(
            f"weights is of type {type(given).__name__}",
            expected="gateup.ops.Weights(gate, up, down), biases after them",
        )
    return Weights(*given)


def gated_mlp_fused(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    *,
    layout: GateUpLayout,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    act: str = "silu",
    options: MLPOptions = _DEFAULT,
) -> Tensor:
    """The same with gate and up in one tensor, lying as `layout` declares.

    gate_up [2I, H] and down [H, I]; both transposed where the layout's orientation is "in_out".
    gate_up_bias [2I] lies as gate_up's output axis does. Raises UsageError as `gated_mlp`, for an
    odd fused width, and for a layout that is not of one fused tensor.
    """
    activation(act)
    form = word(layout)
    are_tensors(x=x, gate_up=gate_up, down=down)
    if gate_up.dim() != 2 or down.dim() != 2:
        name, tensor = ("gate_up", gate_up) if gate_up.dim() != 2 else ("down", down)
        raise UsageError(f"{name} has shape {tuple(tensor.shape)}", expected="two axes")
    if layout.orientation == "in_out":
        gate_up, down = gate_up.t(), down.t()
    width, hidden = even_width(gate_up.shape[0], "gate_up"), gate_up.shape[1]
    check(
        x,
        ("gate_up", gate_up, (2 * width, hidden), "2·I, H"),
        ("down", down, (down.shape[0], width), "H, I"),
        ("gate_up_bias", gate_up_bias, (2 * width,), "2·I"),
        ("down_bias", down_bias, (down.shape[0],), "H"),
        mixed=autocasts(x.device.type),
    )
    operands = Operands(gate_up, None, down, gate_up_bias, None, down_bias)
    return mlp(x, operands, form, act, options)
