"""Expert MLPs one after another, a long expert's rows tile by tile: memory bounded by the tile.

Serves what `experts_grouped` does not: tiles, float32 in between, and the steps of transformers'
eager loop. Letters as in `gateup.ops.experts`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gateup.ops import dispatch
from gateup.ops.activations import activation
from gateup.ops.experts import (
    Bank,
    Gradients,
    How,
    Kept,
    Needs,
    empty_gradients,
    empty_kept,
    sort_rows,
    weighted_dtype,
)
from gateup.ops.gemm import gemm, wide_dtype


def forward(x: Tensor, index: Tensor, weights: Tensor, bank: Bank, how: How) -> tuple[Tensor, Kept]:
    """y [T, H] in x's dtype and what is kept. x [T, H]; index, weights [T, k]."""
    rows = sort_rows(index, how.mode)
    kept, compute = empty_kept(index.numel(), bank, how), bank.down.dtype
    scale = weights.reshape(-1)[rows.place]
    # The eager loop adds in y's dtype; sums over k experts in float32 cost one more [T, H].
    y = x.new_zeros(x.shape, dtype=x.dtype if how.mode == "experts" else wide_dtype(x.dtype))
    for e, span, _ in rows.tiles(len(bank.down), how.tile):
        token = rows.token[span]
        taken = x[token].to(compute)
        gate_up = _gate_up(taken, bank, e, how, kept.gate_up[span] if how.keep >= 1 else None)
        product = _product(gate_up, how, compute, kept.product[span] if how.keep >= 2 else None)
        del gate_up
        out = _down(product, bank, e, how, kept.out[span] if how.keep >= 3 else None)
        y.index_add_(0, token, (out * scale[span, None]).to(y.dtype))
    return y.to(x.dtype), kept


def _buffer(like: Tensor, width: int, how: How, kept: Tensor | None) -> Tensor:
    """A GEMM's result [n, width]: float32 when wide; straight into `kept` where dtypes agree."""
    dtype = wide_dtype(like.dtype) if how.wide else like.dtype
    if kept is not None and kept.dtype == dtype:
        return kept
    return like.new_empty((like.shape[0], width), dtype=dtype)


def _project(
    x: Tensor, weight: Tensor, bias: Tensor | None, how: How, kept: Tensor | None
) -> Tensor:
    """x @ weight + bias. x [n, in]; weight [in, out]; a copy in x's dtype goes to `kept`."""
    out = _buffer(x, weight.shape[1], how, kept)
    gemm(x, weight, out)
    if bias is not None:
        # The product is rounded, then the sum: transformers adds experts' biases so.
        out.add_(bias)
    if kept is not None and kept is not out:
        kept.copy_(out)
    return out


def _gate_up(x: Tensor, bank: Bank, e: int, how: How, kept: Tensor | None) -> Tensor:
    bias = None if bank.gate_up_bias is None else bank.gate_up_bias[e]
    return _project(x, how.oriented(bank.gate_up[e]), bias, how, kept)


def _down(product: Tensor, bank: Bank, e: int, how: How, kept: Tensor | None) -> Tensor:
    bias = None if bank.down_bias is None else bank.down_bias[e]
    return _project(product, how.oriented(bank.down[e]), bias, how, kept)


def _product(fused: Tensor, how: How, dtype: torch.dtype, kept: Tensor | None) -> Tensor:
    """act(gate) ⊙ up [n, I] in `dtype`, in `kept` where given."""
    gate, up = how.halves(fused)
    if how.wide:
        out = fused.new_empty(gate.shape, dtype=dtype) if kept is None else kept
        dispatch.choose(how.act, gate, out).forward(gate, up, how.act, out)
        return out
    product = activation(how.act).gated(gate, up)
    return product if kept is None else kept.copy_(product)


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
    """Gradients for y's [T, H]. Each weight's is written once; tiles are summed in float32."""
    rows = sort_rows(index, how.mode)
    grads = empty_gradients(x, weights, bank, needs)
    _zero_idle(grads, rows.counts(len(bank.down)))
    scale = weights.reshape(-1)[rows.place]
    d_x = x.new_zeros(x.shape if needs.x else (0,), dtype=wide_dtype(x.dtype))
    if how.mode == "experts":
        d_x = d_x.to(x.dtype)
    sums, weighted = _Sums(grads, how), weighted_dtype(bank, weights, how)
    # Autograd runs transformers' loop from its last expert to its first.
    for e, span, tiles in rows.tiles(len(bank.down), how.tile, backwards=how.mode == "experts"):
        token, factor = rows.token[span], scale[span, None]
        tile = _Tile(x[token].to(bank.down.dtype), bank, e, how, needs)
        taken = grad[token].to(weighted)
        tile.recompute(kept, span)
        if needs.weights:
            d_scale = (taken * tile.out(kept, span)).sum(-1)
            grads.weights.view(-1)[rows.place[span]] = d_scale.to(weights.dtype)
        exact = taken * factor
        d_out = exact.to(bank.down.dtype)
        d_gate_up, exact_pre = tile.differentiate(d_out) if needs.pre else (None, None)
        sums.add(e, tiles, (tile.x, d_gate_up, exact_pre), (tile.product, d_out, exact))
        if d_gate_up is not None and needs.x:
            d_rows = _buffer(tile.x, x.shape[1], how, None)
            gemm(d_gate_up, how.oriented(bank.gate_up[e]).t(), d_rows)
            d_x.index_add_(0, token, d_rows.to(d_x.dtype))
    return grads._replace(x=d_x.to(x.dtype)) if needs.x else grads


def _zero_idle(grads: Gradients, counts: Tensor) -> None:
    """Experts without a token get zeros."""
    for e in (counts == 0).nonzero().flatten().tolist():
        for stack in grads[2:]:
            if stack.numel():
                stack[e].zero_()


class _Tile:
    """Some rows of one expert, on the way back."""

    def __init__(self, x: Tensor, bank: Bank, e: int, how: How, needs: Needs) -> None:
        self.x, self.bank, self.e, self.how, self.needs = x, bank, e, how, needs
        self.gate_up = self.product = x.new_empty((0,))

    def recompute(self, kept: Kept, span: slice) -> None:
        """gate_up and the product: kept, or computed anew by forward's own steps."""
        how = self.how
        if how.keep >= 1:
            self.gate_up = kept.gate_up[span]
        else:
            self.gate_up = _gate_up(self.x, self.bank, self.e, how, None)
        if how.keep >= 2:
            self.product = kept.product[span]
        elif self.needs.product:
            self.product = _product(self.gate_up, how, self.x.dtype, None)

    def out(self, kept: Kept, span: slice) -> Tensor:
        if self.how.keep >= 3:
            return kept.out[span]
        return _down(self.product, self.bank, self.e, self.how, None)

    def differentiate(self, d_out: Tensor) -> tuple[Tensor, Tensor]:
        """d_out [n, H] -> gradient of gate_up [n, 2I], both in the bank's dtype; and the same
        before it was rounded, where a bias sums it in float32."""
        how = self.how
        gate, up = how.halves(self.gate_up)
        d_product = _buffer(self.x, gate.shape[1], how, None)
        gemm(d_out, how.oriented(self.bank.down[self.e]).t(), d_product)
        exact = how.wide and self.needs.gate_up_bias
        d_gate_up = d_product.new_empty(
            self.gate_up.shape, dtype=d_product.dtype if exact else self.x.dtype
        )
        d_gate, d_up = how.halves(d_gate_up)
        if how.wide:
            backend = dispatch.choose(how.act, gate, d_gate)
            backend.backward(d_product, gate, up, how.act, d_gate, d_up, None)
        else:
            of_gate, of_up = activation(how.act).gated_backward(d_product, gate, up)
            d_gate.copy_(of_gate)
            d_up.copy_(of_up)
        return d_gate_up.to(self.x.dtype), d_gate_up


class _Sums:
    """Gradients of the bank: written directly, or summed in float32 over an expert's tiles."""

    def __init__(self, grads: Gradients, how: How) -> None:
        self.targets, self.how = grads[2:], how
        self.partial: tuple[Tensor, ...] | None = None
        self.done = 0

    def add(self, e: int, tiles: int, *gemms: tuple[Tensor, Tensor | None, Tensor | None]) -> None:
        """One of the `tiles` tiles of expert e, which come one after another.

        gemms  of gate_up and of down: inputs, gradient of outputs, and that before rounding
        """
        if tiles > 1 and self.partial is None:
            self.partial = tuple(_float_sum(t) for t in self.targets)
        into = self.partial or tuple(t[e] if t.numel() else t for t in self.targets)
        for weight, bias, (inputs, d, exact) in zip(into[:2], into[2:], gemms, strict=True):
            if d is not None and weight.numel():
                a, b = (d.t(), inputs) if self.how.out_in else (inputs.t(), d)
                gemm(a, b, weight, accumulate=self.partial is not None)
            if exact is not None and bias.numel():
                summed = exact if self.how.wide else exact.to(inputs.dtype)
                if self.partial is None:
                    bias.copy_(summed.sum(0))
                else:
                    bias.add_(summed.sum(0, dtype=bias.dtype))
        self.done += 1
        if self.done < tiles:
            return
        for target, total in zip(self.targets, self.partial or (), strict=False):
            if target.numel():
                target[e].copy_(total)
        self.partial, self.done = None, 0


def _float_sum(stack: Tensor) -> Tensor:
    """Zeros for one expert of a stack [E, ...]; empty where no gradient is asked for."""
    if not stack.numel():
        return stack
    return stack.new_zeros(stack.shape[1:], dtype=wide_dtype(stack.dtype))
