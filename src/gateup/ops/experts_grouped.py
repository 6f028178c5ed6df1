"""Expert MLPs all at once: each step over all S rows, GEMMs grouped by expert.

Its steps are those of transformers' grouped_mm, and have its bits. Letters as in
`gateup.ops.experts`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gateup.ops.activations import activation
from gateup.ops.experts import (
    Bank,
    Gradients,
    How,
    Kept,
    Needs,
    Sorted,
    empty_gradients,
    sort_rows,
    weighted_dtype,
)
from gateup.ops.gemm import gemm

# torch has a grouped matmul since 2.8 (on CUDA), as a public function with CPU support since 2.10.
_native: Any = getattr(F, "grouped_mm", None)
_NATIVE_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# What the kernel asks of the strides of its operands, in bytes.
_ALIGNMENT = 16


class Groups:
    """Matrix products of sorted rows with each expert's own matrix."""

    def __init__(self, rows: Sorted, num_experts: int) -> None:
        self.counts = rows.counts(num_experts)
        self.ends = torch.cumsum(self.counts, 0, dtype=torch.int32)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """a [S, K] times each row's own of b [E, K, N] -> [S, N]."""
        if has_native(a, b):
            product: Tensor = _native(a, b, offs=self.ends)
            return product
        out = a.new_empty((a.shape[0], b.shape[2]))
        for e, span in self._spans():
            gemm(a[span], b[e], out[span])
        return out

    def outer(self, a: Tensor, b: Tensor) -> Tensor:
        """aᵀ b of each expert's rows. a [S, M], b [S, N] -> [E, M, N], zeros where none."""
        if has_native(a, b):
            product: Tensor = _native(a.t(), b, offs=self.ends)
            return product
        out = a.new_zeros((len(self.counts), a.shape[1], b.shape[1]))
        for e, span in self._spans():
            gemm(a[span].t(), b[span], out[e])
        return out

    def _spans(self) -> list[tuple[int, slice]]:
        ends = [0, *self.ends.tolist()]
        spans = [slice(low, high) for low, high in pairwise(ends)]
        return [(e, span) for e, span in enumerate(spans) if span.start < span.stop]


def has_native(a: Tensor, b: Tensor) -> bool:
    """Whether torch's own grouped matmul serves these operands on their device."""
    if _native is None or a.dtype not in _NATIVE_DTYPES or a.device.type not in ("cpu", "cuda"):
        return False
    if a.is_cuda and torch.cuda.get_device_capability(a.device) < (8, 0):
        return False
    return all(_aligned(t) for t in (a, b)) and a.numel() > 0


def _aligned(t: Tensor) -> bool:
    strides = [s * t.element_size() for s in t.stride() if s != 1]
    return t.data_ptr() % _ALIGNMENT == 0 and all(s % _ALIGNMENT == 0 for s in strides)


def _rows(x: Tensor, rows: Sorted, bank: Bank) -> Tensor:
    """x [T, H] -> [S, H], in the dtype that is computed in."""
    return x[rows.token].to(bank.down.dtype)


def _gate_up(x: Tensor, rows: Sorted, groups: Groups, bank: Bank, how: How) -> Tensor:
    fused = groups.matmul(_rows(x, rows, bank), how.oriented(bank.gate_up))
    return fused if bank.gate_up_bias is None else fused.add_(bank.gate_up_bias[rows.expert])


def _product(fused: Tensor, how: How) -> Tensor:
    return activation(how.act).gated(*how.halves(fused))


def _down(product: Tensor, rows: Sorted, groups: Groups, bank: Bank, how: How) -> Tensor:
    out = groups.matmul(product, how.oriented(bank.down))
    return out if bank.down_bias is None else out.add_(bank.down_bias[rows.expert])


def forward(x: Tensor, index: Tensor, weights: Tensor, bank: Bank, how: How) -> tuple[Tensor, Kept]:
    """y [T, H] in x's dtype and what is kept. x [T, H]; index, weights [T, k]."""
    rows = sort_rows(index, how.mode)
    groups = Groups(rows, len(bank.down))
    scale = weights.reshape(-1)[rows.place]
    gate_up = _gate_up(x, rows, groups, bank, how)
    product = _product(gate_up, how)
    nothing = bank.down.new_empty
    kept = [gate_up if how.keep >= 1 else nothing((0,))]
    kept.append(product if how.keep >= 2 else nothing((0,)))
    del gate_up
    out = _down(product, rows, groups, bank, how)
    del product
    kept.append(out if how.keep >= 3 else nothing((0,)))
    weighted = out * scale[:, None]
    del out
    by_slot = torch.empty_like(weighted)
    by_slot[rows.place] = weighted
    y = by_slot.view(*index.shape, x.shape[1]).sum(dim=1)
    return y.to(x.dtype), Kept(*kept)


def backward(
    grad: Tensor,
    x: Tensor,
    index: Tensor,
    weights: Tensor,
    bank: Bank,
    kept: Kept,
    how: How,
    needs: Needs,
) -> Gradients:
    """Gradients for y's [T, H]."""
    rows = sort_rows(index, how.mode)
    groups = Groups(rows, len(bank.down))
    grads = empty_gradients(x, weights, bank, Needs(*(False,) * len(needs)))
    scale = weights.reshape(-1)[rows.place]
    gate_up = kept.gate_up if how.keep >= 1 else _gate_up(x, rows, groups, bank, how)
    product = kept.product if how.keep >= 2 else _product(gate_up, how) if needs.product else None
    taken = grad[rows.token].to(weighted_dtype(bank, weights, how))
    if needs.weights:
        out = kept.out if how.keep >= 3 else _down(_there(product), rows, groups, bank, how)
        d_weights = torch.empty_like(weights).view(-1)
        d_weights[rows.place] = (taken * out).sum(-1).to(weights.dtype)
        grads = grads._replace(weights=d_weights.view(weights.shape))
        del out
    d_out = (taken * scale[:, None]).to(bank.down.dtype)
    del taken
    if needs.down:
        grads = grads._replace(down=_weight(groups, _there(product), d_out, how))
    if needs.down_bias:
        grads = grads._replace(down_bias=_bias(bank.down_bias, rows, d_out))
    del product
    if not needs.pre:
        return grads
    d_product = groups.matmul(d_out, how.oriented(bank.down).transpose(-2, -1))
    del d_out
    gate, up = how.halves(gate_up)
    d_gate_up = torch.empty_like(gate_up)
    for half, d in zip(
        how.halves(d_gate_up),
        activation(how.act).gated_backward(d_product, gate, up),
        strict=True,
    ):
        half.copy_(d)
    return grads._replace(**_first(x, rows, groups, bank, how, needs, d_gate_up))


def _first(
    x: Tensor,
    rows: Sorted,
    groups: Groups,
    bank: Bank,
    how: How,
    needs: Needs,
    d_gate_up: Tensor,
) -> dict[str, Tensor]:
    """Gradients on gate_up's side: of x, of its weight and its bias."""
    found = {}
    if needs.gate_up:
        found["gate_up"] = _weight(groups, _rows(x, rows, bank), d_gate_up, how)
    if needs.gate_up_bias:
        found["gate_up_bias"] = _bias(bank.gate_up_bias, rows, d_gate_up)
    if needs.x:
        d_rows = groups.matmul(d_gate_up, how.oriented(bank.gate_up).transpose(-2, -1))
        d_x = x.new_zeros(x.shape)
        found["x"] = d_x.index_put_((rows.token,), d_rows.to(x.dtype), accumulate=True)
    return found


def _weight(groups: Groups, inputs: Tensor, d: Tensor, how: How) -> Tensor:
    return groups.outer(d, inputs) if how.out_in else groups.outer(inputs, d)


def _bias(bias: Tensor | None, rows: Sorted, d: Tensor) -> Tensor:
    """As autograd differentiates bias[expert]: row by row into the bias's own dtype."""
    return torch.zeros_like(_there(bias)).index_put_((rows.expert,), d, accumulate=True)


def _there(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
