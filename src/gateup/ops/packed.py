"""Products with weights that stay in the blocks of their file: GGUF's formats, bf16, f16, f32.

A matrix [n, k] (n outputs) is packed once. Held "native" it lies in the order that the C++
kernels stream; held "raw" its bytes are those of the file (the same memory where it was mapped),
and rows are dequantised a few at a time when they are used. Neither is ever floating point as a
whole. Weights are constants: gradients flow to x and to biases, and nothing is kept for them.

x is of float32, bfloat16, float16 or float64 and of any leading axes; results are of its dtype
(under autocast, of autocast's, as torch's own linear).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gateup.errors import UsageError
from gateup.ops import packed_ops
from gateup.ops.act_and_mul import act_and_mul_split
from gateup.ops.activations import activation
from gateup.ops.arguments import DTYPES, floating, refuse_transforms
from gateup.ops.mlp_ops import autocast_dtype
from gateup.ops.packed_weight import PackedWeight
from gateup.ops.packing import nbytes, pack, status
from gateup.ops.tracing import differentiable, traced

__all__ = [
    "PackedWeight",
    "dequantise",
    "gated_mlp",
    "linear",
    "linears",
    "nbytes",
    "pack",
    "status",
]


def linear(x: Tensor, w: PackedWeight, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + bias. x [..., k], bias [n] -> [..., n].

    Raises UsageError when x does not fit to the matrix or is on another device.
    """
    return linears(x, (w,), (bias,))[0]


def linears(
    x: Tensor, weights: Sequence[PackedWeight], biases: Sequence[Tensor | None] | None = None
) -> list[Tensor]:
    """The products of one x with several matrices, x read (and quantised) once. As `linear`."""
    biases = (None,) * len(weights) if biases is None else biases
    for i, (w, bias) in enumerate(zip(weights, biases, strict=True)):
        _check(x, w, bias, "w" if len(weights) == 1 else f"weights[{i}]")
    x = _cast(x)
    if traced(x, *biases, *(w.data for w in weights)):
        op = torch.ops.gateup.packed_linear
        pairs = zip(weights, biases, strict=True)
        return [op(x, w.data, b, w.type, w.n, w.k, w.terms) for w, b in pairs]
    if differentiable(x, *biases):
        return list(packed_ops.differentiated(weights, x, *biases))
    return list(packed_ops.forward(weights, x, biases))


def gated_mlp(
    x: Tensor, gate: PackedWeight, up: PackedWeight, down: PackedWeight, act: str = "silu"
) -> Tensor:
    """down(act(gate(x)) ⊙ up(x)). x [..., H]; gate, up [I, H]; down [H_out, I] -> [..., H_out].

    Rounded to x's dtype once; where a gradient is to flow, also gate and up, which are kept for
    it, and the product. Raises UsageError as `linear`, and for an unknown activation.
    """
    activation(act)
    _check(x, gate, None, "gate")
    _check(x, up, None, "up")
    if up.n != gate.n or down.k != gate.n:
        raise UsageError(
            f"gate has {gate.n:,} outputs, up {up.n:,}, and down takes {down.k:,}",
            expected="one intermediate size",
        )
    x = _cast(x)
    if differentiable(x):
        gate_x, up_x = linears(x, (gate, up))
        return linear(act_and_mul_split(gate_x, up_x, act), down)
    weights = (gate, up, down)
    if traced(x, *(w.data for w in weights)):
        types, terms = " ".join(w.type for w in weights), [w.terms for w in weights]
        sizes = [gate.n, gate.k, down.n]
        data = (w.data for w in weights)
        y: Tensor = torch.ops.gateup.packed_gated_mlp(x, *data, types, sizes, terms, act)
        return y
    return packed_ops.gated(weights, x, act)


def dequantise(
    w: PackedWeight, rows: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Rows of the matrix in `dtype`: exact in float32, rounded to nearest otherwise.

    rows  numbers of rows [...], as an embedding looks them up -> [..., k]; None: all -> [n, k]
    Raises UsageError for numbers that are not whole, and IndexError for one out of range.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype is {dtype}", expected="a floating-point dtype")
    if rows is not None and rows.dtype not in (torch.int64, torch.int32):
        raise UsageError(f"rows are {rows.dtype}", expected="int64 or int32")
    given = (w.data,) if rows is None else (w.data, rows)
    if traced(*given):
        call = torch.ops.gateup.packed_rows
        result: Tensor = call(w.data, rows, w.type, w.n, w.k, w.terms, dtype)
        return result
    return packed_ops.rows(w, rows, dtype)


def _cast(x: Tensor) -> Tensor:
    dtype = autocast_dtype(x)
    return x if dtype is None else x.to(dtype)


def _check(x: Tensor, w: PackedWeight, bias: Tensor | None, name: str) -> None:
    refuse_transforms("packed", x, bias)
    floating("x", x)
    if x.dim() == 0 or x.shape[-1] != w.k:
        raise UsageError(f"x has shape {tuple(x.shape)}", expected=f"[..., {w.k}], as {name} takes")
    if w.native and w.data.device.type != "cpu":
        raise UsageError(
            f"{name} is packed for the CPU's kernels and lies on {w.data.device}",
            remedy="pack it with native=False (load_gguf(..., native=False)) for other devices",
        )
    if x.device != w.data.device and not x.is_meta:
        raise UsageError(f"x is on {x.device}, {name} on {w.data.device}", expected="one device")
    if bias is not None and tuple(bias.shape) != (w.n,):
        raise UsageError(
            f"the bias of {name} has shape {tuple(bias.shape)}", expected=f"[n] = ({w.n},)"
        )
