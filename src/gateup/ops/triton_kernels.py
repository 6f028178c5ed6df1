"""act(gate) ⊙ up and its backward as Triton kernels; imported only where triton is (see triton.py).

One program computes BLOCK elements of one row, in float32, rounded once when stored. It loads all
its inputs before it stores anything, so outputs may lie where inputs lie.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Constants that kernels read must be constexpr, and stand to the right of tensors: the interpreter
# keeps constexpr · tensor as a constexpr.
LIMIT = tl.constexpr(7.0)
ALPHA = tl.constexpr(1.702)
ROOT_HALF = tl.constexpr(0.7071067811865476)
DENSITY = tl.constexpr(0.3989422804014327)  # 1/sqrt(2·pi)
TANH_ROOT = tl.constexpr(1.5957691216057308)  # 2·sqrt(2/pi): tanh w is the logistic of 2w
TANH_CUBIC = tl.constexpr(0.07135481627260025)  # 0.044715 of it


@triton.jit
def _logistic(x, factor):
    """1/(1 + e^-x), its complement, and its product with `factor`, as csrc/elementary.hpp does."""
    e = tl.exp(-tl.abs(x))
    total = 1.0 + e
    near = tl.div_rn(1.0, total)
    far = e * near
    negative, small = x < 0, (e < 0.5) & (e > 0)
    quotient = tl.div_rn(tl.where(negative | small, factor * e, factor), total)
    product = tl.where(small & (x >= 0), factor - quotient, quotient)
    return tl.where(negative, far, near), tl.where(negative, near, far), product


@triton.jit
def _value_and_slope(g, ACT: tl.constexpr):
    """act(g) and act'(g); comparisons are such that NaN passes through."""
    if ACT == "silu":
        s, rest, value = _logistic(g, g)
        slope = s * (1.0 + g * rest)
    elif ACT == "gelu":
        cumulative = 0.5 * (1.0 + tl.erf(g * ROOT_HALF))
        value, slope = g * cumulative, cumulative + g * DENSITY * tl.exp(-0.5 * g * g)
    elif ACT == "gelu_tanh":
        # Beyond 20 the logistic is 0 or 1; the bound keeps g³ from overflowing.
        b = tl.where(g < -20.0, -20.0, g)
        b = tl.where(b > 20.0, 20.0, b)
        s, rest, value = _logistic(b * (b * b * TANH_CUBIC + TANH_ROOT), g)
        slope = s + g * s * rest * (b * b * (3.0 * TANH_CUBIC) + TANH_ROOT)
    elif ACT == "relu":
        value, slope = tl.where(g < 0, 0.0, g), tl.where(g <= 0, 0.0, 1.0)
    elif ACT == "relu2":
        r = tl.where(g < 0, 0.0, g)
        value, slope = r * r, 2.0 * r
    elif ACT == "sigmoid":
        value, rest, _ = _logistic(g, g)
        slope = value * rest
    elif ACT == "identity":
        value, slope = g, tl.full(g.shape, 1.0, tl.float32)
    else:
        tl.static_assert(ACT == "gpt_oss")
        b = tl.where(g > LIMIT, LIMIT, g)
        s, rest, value = _logistic(b * ALPHA, b)
        slope = s + value * rest * ALPHA
    return value, slope


@triton.jit
def _factor(up, ACT: tl.constexpr):
    """What act(gate) is multiplied by."""
    if ACT == "gpt_oss":
        bounded = tl.where(up < -LIMIT, -LIMIT, up)
        factor = tl.where(bounded > LIMIT, LIMIT, bounded) + 1.0
    else:
        factor = up
    return factor


@triton.jit
def _load(pointer, row, column, row_stride, column_stride, mask):
    at = row.to(tl.int64) * row_stride + column.to(tl.int64) * column_stride
    return tl.load(pointer + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _to_bfloat16(x):
    """Rounded to nearest, ties to even, here, because the interpreter's own cast cuts off."""
    bits = x.to(tl.uint32, bitcast=True)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return tl.where(x == x, rounded, x).to(tl.bfloat16)


@triton.jit
def _store(pointer, row, column, row_stride, column_stride, mask, x):
    at = row.to(tl.int64) * row_stride + column.to(tl.int64) * column_stride
    if pointer.dtype.element_ty == tl.bfloat16:
        rounded = _to_bfloat16(x)
    else:
        rounded = x.to(pointer.dtype.element_ty)
    tl.store(pointer + at, rounded, mask=mask)


@triton.jit
def forward(
    gate, gate_row, gate_column, up, up_row, up_column, out, out_row, out_column,
    columns, ACT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < columns
    g = _load(gate, row, column, gate_row, gate_column, mask)
    u = _load(up, row, column, up_row, up_column, mask)
    value, _ = _value_and_slope(g, ACT)
    _store(out, row, column, out_row, out_column, mask, value * _factor(u, ACT))


@triton.jit
def backward(
    grad, grad_row, grad_column, gate, gate_row, gate_column, up, up_row, up_column,
    d_gate, d_gate_row, d_gate_column, d_up, d_up_row, d_up_column,
    product, product_row, product_column,
    columns, ACT: tl.constexpr, PRODUCT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < columns
    dy = _load(grad, row, column, grad_row, grad_column, mask)
    g = _load(gate, row, column, gate_row, gate_column, mask)
    u = _load(up, row, column, up_row, up_column, mask)
    value, slope = _value_and_slope(g, ACT)
    factor = _factor(u, ACT)
    of_gate, of_up = dy * factor * slope, dy * value
    # Beyond a bound even an infinite gradient counts for nothing.
    if ACT == "gpt_oss":
        of_gate = tl.where(g <= LIMIT, of_gate, 0.0)
        of_up = tl.where(tl.abs(u) <= LIMIT, of_up, 0.0)
    elif ACT == "relu" or ACT == "relu2":
        of_gate = tl.where(g <= 0, 0.0, of_gate)
    _store(d_gate, row, column, d_gate_row, d_gate_column, mask, of_gate)
    _store(d_up, row, column, d_up_row, d_up_column, mask, of_up)
    if PRODUCT:
        _store(product, row, column, product_row, product_column, mask, value * factor)
