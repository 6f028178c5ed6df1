"""Tile by tile over tokens, and in float32 from GEMM to GEMM when asked: bounded scratch.

Every [t, I] buffer is allocated once per call and serves all tiles; y and x's gradient are
written into one preallocated tensor; weight gradients are summed in float32 and cast once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gateup.ops import dispatch
from gateup.ops.gemm import gemm, linear, wide_dtype
from gateup.ops.operands import Gradients, Kept, Needs, Operands, gate_and_up
from gateup.ops.rows import Rows, spans

# Tokens whose float32 intermediates exist at a time in "wide" rounding, whatever the tile: large
# enough for the GEMMs' speed, small enough to stay near the caches.
WIDE_CHUNK = 256


@dataclass(frozen=True, slots=True)
class How:
    """form and act as in `exact`; `wide`: float32 between the GEMMs; `tile` tokens, 0 for all."""

    form: str
    act: str
    wide: bool
    tile: int

    def step(self, tokens: int) -> int:
        return max(1, min(self.tile or tokens, tokens))

    def inner(self, tokens: int) -> int:
        """Tokens of the float32 stage, within one tile."""
        return min(self.step(tokens), WIDE_CHUNK) if self.wide else self.step(tokens)


def forward(
    x: Tensor, t: Operands, how: How, keep_pre: bool, keep_product: bool
) -> tuple[Tensor, Kept]:
    """y [..., H] and what was asked to be kept, in the operands' dtype."""
    rows, tokens, dtype = Rows(x), x.numel() // x.shape[-1], t.down.dtype
    step = how.inner(tokens)
    new = partial(x.new_empty, dtype=dtype)
    y = new((tokens, t.down.shape[0]))
    kept = Kept(
        new((tokens, t.w1.shape[0])) if keep_pre else None,
        new((tokens, t.w2.shape[0])) if keep_pre and t.w2 is not None else None,
        new((tokens, t.width)) if keep_product else None,
    )
    scratch = _Scratch(x, t, how, step, own_pre=how.wide or not keep_pre)
    for span in spans(tokens, step):
        n = span.stop - span.start
        pre1, pre2 = scratch.pre(n) or _slices(kept, span)
        _project(rows[span].to(dtype), t, pre1, pre2)
        product = scratch.product(n) if kept.product is None else kept.product[span]
        _combine(how, pre1, pre2, product)
        if how.wide and kept.pre1 is not None:
            kept.pre1[span] = pre1
            if kept.pre2 is not None and pre2 is not None:
                kept.pre2[span] = pre2
        linear(product, t.down, t.b_down, y[span])
    return y.view(*x.shape[:-1], t.down.shape[0]), kept


class _Scratch:
    """Buffers of one call, sized for a tile."""

    def __init__(self, x: Tensor, t: Operands, how: How, step: int, *, own_pre: bool) -> None:
        dtype = t.down.dtype
        wide = wide_dtype(dtype) if how.wide else dtype
        self._pre1 = self._pre2 = None
        if own_pre:
            self._pre1 = x.new_empty((step, t.w1.shape[0]), dtype=wide)
            if t.w2 is not None:
                self._pre2 = x.new_empty((step, t.w2.shape[0]), dtype=wide)
        # The product lies over gate where that is whole rows of the same dtype.
        over = own_pre and not how.wide and how.form in ("split", "plain")
        self._product = self._pre1 if over else x.new_empty((step, t.width), dtype=dtype)

    def pre(self, n: int) -> tuple[Tensor, Tensor | None] | None:
        if self._pre1 is None:
            return None
        return self._pre1[:n], None if self._pre2 is None else self._pre2[:n]

    def product(self, n: int) -> Tensor:
        assert self._product is not None
        return self._product[:n]


def backward(
    dy: Tensor,
    x: Tensor | None,
    t: Operands,
    kept: Kept,
    how: How,
    needs: Needs,
    x_dtype: torch.dtype,
) -> Gradients:
    """Gradients: x's in `x_dtype`, the others in the operands' dtype."""
    tokens = dy.numel() // dy.shape[-1]
    step = how.step(tokens)
    work = _Backward(dy, x, t, kept, how, needs)
    sums = _Sums(t, needs, single=step >= tokens)
    dx = None
    if needs.x:
        dx = dy.new_empty((tokens, t.w1.shape[1]), dtype=x_dtype)
    for span in spans(tokens, step):
        d1, d2, product = work.tile(span)
        sums.add("down", work.dy[span], product)
        sums.add_bias("b_down", work.dy[span])
        if not needs.pre:
            continue
        rows = None if work.x is None else work.x[span].to(t.down.dtype)
        sums.add("w1", d1, rows)
        sums.add_bias("b1", d1)
        if d2 is not None:
            sums.add("w2", d2, rows)
            sums.add_bias("b2", d2)
        if dx is not None:
            _input_gradient(d1, d2, t, how, dx[span])
    if dx is not None:
        dx = dx.view(*dy.shape[:-1], dx.shape[1])
    return sums.result(dx)


class _Backward:
    """Per tile: the product and the gradients of the pre-activations, in reused buffers."""

    def __init__(
        self, dy: Tensor, x: Tensor | None, t: Operands, kept: Kept, how: How, needs: Needs
    ) -> None:
        self.dy, self.x = Rows(dy), None if x is None else Rows(x)
        self.t, self.kept, self.how, self.needs = t, kept, how, needs
        tokens = dy.numel() // dy.shape[-1]
        step, self.inner = how.step(tokens), how.inner(tokens)
        dtype = t.down.dtype
        wide = wide_dtype(dtype) if how.wide else dtype
        self.recompute = kept.pre1 is None and (needs.pre or kept.product is None)
        # What the elementwise kernel reads: recomputed, or kept and widened.
        reads = self.recompute or (how.wide and kept.pre1 is not None)
        self.pre = self._pair(dy, self.inner, wide) if reads else (None, None)
        # What it writes: in narrow rounding over what it read, unless that is kept.
        over = reads and not how.wide
        self.d = self.pre if over else self._pair(dy, step, dtype) if needs.pre else (None, None)
        self.d_product = dy.new_empty((self.inner, t.width), dtype=wide) if needs.pre else None
        self.own_product = needs.down and kept.product is None
        self.product = None
        if self.own_product:
            over_gradient = needs.pre and not how.wide
            self.product = (
                self.d_product if over_gradient else dy.new_empty((step, t.width), dtype=dtype)
            )

    def _pair(self, like: Tensor, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        w1, w2 = self.t.w1, self.t.w2
        return like.new_empty((n, w1.shape[0]), dtype=dtype), (
            None if w2 is None else like.new_empty((n, w2.shape[0]), dtype=dtype)
        )

    def tile(self, span: slice) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(d_pre1, d_pre2, product) of one tile; a 0-row d_pre1 where it is not needed."""
        for chunk in spans(span.stop - span.start, self.inner):
            self._chunk(slice(span.start + chunk.start, span.start + chunk.stop), chunk)
        n = span.stop - span.start
        product = self.product[:n] if self.product is not None else _cut(self.kept.product, span)
        if self.d[0] is None or not self.needs.pre:
            return self.dy[slice(0, 0)], None, product
        return self.d[0][:n], _cut(self.d[1], slice(0, n)), product

    def _chunk(self, span: slice, local: slice) -> None:
        n = span.stop - span.start
        pre1, pre2 = self._read(span, n)
        if pre1 is None:
            return
        product = _cut(self.product, local)
        if not self.needs.pre:
            if product is not None:
                _combine(self.how, pre1, pre2, product)
            return
        assert self.d_product is not None
        assert self.d[0] is not None
        d_product = self.d_product[:n]
        gemm(self.dy[span], self.t.down, d_product)
        _differentiate(
            self.how, d_product, (pre1, pre2), (self.d[0][local], _cut(self.d[1], local)), product
        )

    def _read(self, span: slice, n: int) -> tuple[Tensor | None, Tensor | None]:
        mine = _cut(self.pre[0], slice(0, n)), _cut(self.pre[1], slice(0, n))
        if self.recompute:
            assert self.x is not None
            assert mine[0] is not None
            _project(self.x[span].to(self.t.down.dtype), self.t, mine[0], mine[1])
            return mine
        kept = _cut(self.kept.pre1, span), _cut(self.kept.pre2, span)
        if not self.how.wide:
            return kept
        for buffer, stored in zip(mine, kept, strict=True):
            if buffer is not None and stored is not None:
                buffer.copy_(stored)
        return mine


class _Sums:
    """Weight and bias gradients over tiles, in float32; one tile's weight gradient is final."""

    def __init__(self, t: Operands, needs: Needs, *, single: bool) -> None:
        self.t, self.single = t, single
        self.wanted = {name for name, needed in needs._asdict().items() if needed}
        self.sums: dict[str, Tensor] = {}

    def add(self, name: str, grad: Tensor, rows: Tensor | None) -> None:
        """Add gradᵀ @ rows to the weight's gradient [out, in]."""
        if name not in self.wanted or rows is None:
            return
        if self.single:
            self.sums[name] = grad.t().mm(rows)
            return
        total = self.sums.get(name)
        if total is None:
            weight: Tensor = getattr(self.t, name)
            shape, dtype = weight.shape, wide_dtype(weight.dtype)
            total = self.sums[name] = weight.new_empty(shape, dtype=dtype)
            gemm(grad.t(), rows, total)
        else:
            gemm(grad.t(), rows, total, accumulate=True)

    def add_bias(self, name: str, grad: Tensor) -> None:
        if name in self.wanted:
            part = grad.sum(0, dtype=wide_dtype(grad.dtype))
            self.sums[name] = self.sums[name].add_(part) if name in self.sums else part

    def result(self, dx: Tensor | None) -> Gradients:
        dtype = self.t.down.dtype
        return Gradients(x=dx, **{name: total.to(dtype) for name, total in self.sums.items()})


def _project(rows: Tensor, t: Operands, pre1: Tensor, pre2: Tensor | None) -> None:
    linear(rows, t.w1, t.b1, pre1)
    if t.w2 is not None and pre2 is not None:
        linear(rows, t.w2, t.b2, pre2)


def _combine(how: How, pre1: Tensor, pre2: Tensor | None, product: Tensor) -> None:
    if how.form == "plain":
        dispatch.value(pre1, how.act, product)
        return
    gate, up = gate_and_up(how.form, pre1, pre2)
    dispatch.choose(how.act, gate, product).forward(gate, up, how.act, product)


def _differentiate(
    how: How,
    d_product: Tensor,
    pre: tuple[Tensor, Tensor | None],
    d_pre: tuple[Tensor, Tensor | None],
    product: Tensor | None,
) -> None:
    if how.form == "plain":
        dispatch.gradient(d_product, pre[0], how.act, d_pre[0], product)
        return
    gate, up = gate_and_up(how.form, *pre)
    d_gate, d_up = gate_and_up(how.form, *d_pre)
    backend = dispatch.choose(how.act, gate, d_gate)
    backend.backward(d_product, gate, up, how.act, d_gate, d_up, product)


def _input_gradient(d1: Tensor, d2: Tensor | None, t: Operands, how: How, dx: Tensor) -> None:
    """dx = d1 @ w1 (+ d2 @ w2): in float32, rounded once, when "wide" or when dx is float32."""
    sum_wide = how.wide and dx.dtype != wide_dtype(dx.dtype)
    for span in spans(dx.shape[0], how.inner(dx.shape[0])):
        part = dx[span]
        total = torch.empty_like(part, dtype=wide_dtype(part.dtype)) if sum_wide else part
        gemm(d1[span], t.w1, total)
        if d2 is not None and t.w2 is not None:
            gemm(d2[span], t.w2, total, accumulate=True)
        if sum_wide:
            part.copy_(total)


def _slices(kept: Kept, span: slice) -> tuple[Tensor, Tensor | None]:
    assert kept.pre1 is not None
    return kept.pre1[span], _cut(kept.pre2, span)


def _cut(tensor: Tensor | None, span: slice) -> Tensor | None:
    return None if tensor is None else tensor[span]
