"""What the products with packed weights compute. Tensors are 2-D [T, ·], already checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gateup.ops import dispatch, packed_native, unpack
from gateup.ops.gemm import wide_dtype
from gateup.ops.packed_weight import PackedWeight
from gateup.ops.rows import spans

# Elements dequantised at a time: 4 MiB in float32. From 64 k to 2 M elements the speed is the
# same within 10 %; below, calls count.
CHUNK = 1 << 20


def forward(
    x: Tensor, weights: Sequence[PackedWeight], biases: Sequence[Tensor | None]
) -> list[Tensor]:
    """x [T, k] -> [T, n] of each weight, in x's dtype."""
    if packed_native.serves(x, *weights):
        return packed_native.linear(x, weights, biases, x.dtype)
    return [_product(x, w, b, x.dtype) for w, b in zip(weights, biases, strict=True)]


def gated_mlp(x: Tensor, weights: Sequence[PackedWeight], act: str) -> Tensor:
    """x [T, H] -> down(act(gate(x)) ⊙ up(x)) [T, H_out], rounded to x's dtype once."""
    if packed_native.serves(x, *weights):
        return packed_native.gated_mlp(x, weights, act)
    gate_w, up_w, down_w = weights
    wide = wide_dtype(x.dtype)
    gate, up = (_product(x, w, None, wide) for w in (gate_w, up_w))
    dispatch.choose(act, gate, gate).forward(gate, up, act, gate)
    return _product(gate, down_w, None, x.dtype)


def backward(
    grads: Sequence[Tensor | None], weights: Sequence[PackedWeight], dtype: torch.dtype
) -> Tensor:
    """Σ grad [T, n] @ W -> [T, k] in `dtype`, summed in float32 (float64 for float64)."""
    total: Tensor | None = None
    for grad, w in zip(grads, weights, strict=True):
        if grad is not None:
            total = _add(total, grad, w)
    if total is None:
        raise ValueError("no gradient was given")
    return total.to(dtype)


def take(w: PackedWeight, index: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Rows of W dequantised: those of `index` [r], or all. -> [r, k]

    Raises IndexError for a number below 0 or from n on.
    """
    if index is not None and len(index):
        least, most = int(index.min()), int(index.max())
        if least < 0 or most >= w.n:
            raise IndexError(f"row {least if least < 0 else most} of a matrix with {w.n} rows")
    if w.native and dtype != torch.float64:
        return packed_native.rows(w, index, dtype)
    if index is not None:
        out = torch.empty((len(index), w.k), dtype=dtype, device=w.data.device)
        for span in spans(len(index), _rows(w)):
            out[span] = _read(w, index[span])
        return out
    out = torch.empty((w.n, w.k), dtype=dtype, device=w.data.device)
    for span, values in _chunks(w, wide_dtype(dtype)):
        out[span] = values
    return out


def _product(x: Tensor, w: PackedWeight, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """x [T, k] -> [T, n] in `dtype`; rounded once, unless torch's own product serves."""
    if packed_native.serves(x, w):
        return packed_native.linear(x, (w,), (bias,), dtype)[0]
    values = _dense(w)
    if values is not None and values.dtype == x.dtype == dtype:
        return F.linear(x, values, bias if bias is None else bias.to(dtype))
    wide = wide_dtype(x.dtype)
    rows, y = x.to(wide), x.new_empty((x.shape[0], w.n), dtype=dtype)
    for span, block in _chunks(w, wide):
        y[:, span] = F.linear(rows, block, None if bias is None else bias[span].to(wide))
    return y


def _add(total: Tensor | None, grad: Tensor, w: PackedWeight) -> Tensor:
    """total + grad [T, n] @ W, in place where there is a total."""
    values = _dense(w)
    wide = wide_dtype(grad.dtype)
    if values is not None and values.dtype == grad.dtype:
        product = torch.mm(grad, values).to(wide)
        return product if total is None else total.add_(product)
    if total is None:
        total = grad.new_zeros((grad.shape[0], w.k), dtype=wide)
    rows = grad.to(wide)
    for span, block in _chunks(w, wide):
        total.addmm_(rows[:, span], block)
    return total


def _rows(w: PackedWeight) -> int:
    return max(1, CHUNK // w.k)


def _chunks(w: PackedWeight, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """W in pieces of some rows, [r, k] in `dtype`."""
    for span in spans(w.n, _rows(w)):
        yield span, _read(w, span).to(dtype)


def _read(w: PackedWeight, which: slice | Tensor) -> Tensor:
    """Some rows, [r, k] in float32."""
    if not w.native:
        return unpack.unpack(w.type, w.data[which])
    index = torch.arange(which.start, which.stop) if isinstance(which, slice) else which
    return packed_native.rows(w, index, torch.float32)


def _dense(w: PackedWeight) -> Tensor | None:
    """The matrix [n, k] of torch's own type where it is held as that."""
    return None if w.native else unpack.dense(w.type, w.data)
