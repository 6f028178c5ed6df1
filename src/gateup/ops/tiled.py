"""Tile by tile over tokens, and in float32 from GEMM to GEMM when asked: bounded scratch.

Every [t, I] buffer is allocated once per call and serves all tiles; y and x's gradient are
written into one preallocated tensor; weight gradients are summed in float32 and cast once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gateup.ops import dense, dispatch
from gateup.ops.blocks import Pre, cut, gate_up_columns, pre_width, project
from gateup.ops.gemm import gemm, linear, wide_dtype
from gateup.ops.operands import Gradients, Kept, Needs, Operands
from gateup.ops.rows import Rows, spans

# The float32 stage of "wide" rounding goes block by block, 2 MiB a buffer: few enough tokens and
# columns to stay near the caches, enough of both for the GEMMs' speed. Measured at H 1024, I 3072,
# T 512 to 4096: twice the rows are 10 to 40 % slower, half of them 5 to 15 %.
WIDE_ROWS, WIDE_ELEMENTS, WIDE_COLUMNS = 1024, 1 << 19, 512


@dataclass(frozen=True, slots=True)
class How:
    """form and act as in `exact`; `wide`: float32 between the GEMMs; `tile` tokens, 0 for all."""

    form: str
    act: str
    wide: bool
    tile: int

    def step(self, tokens: int) -> int:
        return max(1, min(self.tile or tokens, tokens))

    def block(self, tokens: int, width: int) -> tuple[int, int]:
        """Rows and columns of I whose pre-activations are computed at a time."""
        rows = self.step(tokens)
        if not self.wide:
            return rows, width
        rows = min(rows, WIDE_ROWS)
        return rows, min(width, max(WIDE_COLUMNS, WIDE_ELEMENTS // rows))

    def blocks(self, tile: slice, tokens: int, width: int) -> Iterator[tuple[slice, slice, slice]]:
        """(rows of x, the same rows counted from the tile's first, columns of I)."""
        rows, columns = self.block(tokens, width)
        for local in spans(tile.stop - tile.start, rows):
            for column in spans(width, columns):
                yield (
                    slice(tile.start + local.start, tile.start + local.stop),
                    local,
                    column,
                )


def forward(
    x: Tensor, t: Operands, how: How, keep_pre: bool, keep_product: bool
) -> tuple[Tensor, Kept]:
    """y [..., H] and what was asked to be kept, in the operands' dtype."""
    tokens, form = x.numel() // x.shape[-1], how.form
    if how.wide and dispatch.native_allowed() and dense.serves_mlp(t, form, how.act):
        return dense.gated_mlp(x, t, form, how.act, how.step(tokens), keep_pre, keep_product)
    rows, step = Rows(x), how.step(tokens)
    y = x.new_empty((tokens, t.down.shape[0]))
    kept = _Buffers(x, t, form, tokens, t.width, x.dtype) if keep_pre else None
    own = _own(x, t, how, tokens) if how.wide or kept is None else None
    whole = x.new_empty((tokens, t.width)) if keep_product else None
    # The product lies over gate where that is whole rows of the same dtype.
    over = own is not None and not how.wide and form in ("split", "plain")
    scratch = None if over or keep_product else x.new_empty((step, t.width))
    for tile in spans(tokens, step):
        n = tile.stop - tile.start
        product = whole[tile] if whole is not None else None if scratch is None else scratch[:n]
        for span, local, columns in how.blocks(tile, tokens, t.width):
            pre = _target(own, kept, span, columns, form)
            project(rows[span], t, form, columns, pre)
            if product is None:
                product = pre[0]
            _combine(how, pre, product[local, columns])
            if own is not None and kept is not None:
                cut(form, t.width, columns, kept.rows(span), pre, back=True)
        assert product is not None
        linear(product, t.down, t.b_down, y[tile])
    first, second = (None, None) if kept is None else (kept.first, kept.second)
    return y.view(*x.shape[:-1], t.down.shape[0]), Kept(first, second, whole)


class _Buffers:
    """The first projections' outputs, or their gradients: [tokens, ·] of `columns` of I."""

    def __init__(
        self, like: Tensor, t: Operands, form: str, tokens: int, columns: int, dtype: torch.dtype
    ) -> None:
        self.first = like.new_empty((tokens, pre_width(form, columns)), dtype=dtype)
        self.second = None
        if t.w2 is not None:
            self.second = like.new_empty((tokens, columns), dtype=dtype)

    def rows(self, span: slice) -> Pre:
        return self.first[span], _rows(self.second, span)

    def corner(self, n: int, columns: int, form: str) -> Pre:
        second = None if self.second is None else self.second[:n, :columns]
        return self.first[:n, : pre_width(form, columns)], second


def _own(like: Tensor, t: Operands, how: How, tokens: int) -> _Buffers:
    rows, columns = how.block(tokens, t.width)
    dtype = wide_dtype(t.down.dtype) if how.wide else t.down.dtype
    return _Buffers(like, t, how.form, rows, columns, dtype)


def _target(
    own: _Buffers | None, kept: _Buffers | None, span: slice, columns: slice, form: str
) -> Pre:
    """Where a block's pre-activations go: scratch, or straight to what is kept."""
    if own is not None:
        return own.corner(span.stop - span.start, columns.stop - columns.start, form)
    assert kept is not None
    return kept.rows(span)


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
    dx = dy.new_empty((tokens, t.w1.shape[1]), dtype=x_dtype) if needs.x else None
    for tile in spans(tokens, step):
        product = work.run(tile)
        rows = work.dy[tile]
        sums.add("down", rows, product)
        sums.add_bias("b_down", rows)
        if work.d is None:
            continue
        d1, d2 = work.d.rows(slice(0, tile.stop - tile.start))
        inputs = None if work.x is None else work.x[tile]
        sums.add("w1", d1, inputs)
        sums.add_bias("b1", d1)
        if d2 is not None:
            sums.add("w2", d2, inputs)
            sums.add_bias("b2", d2)
        if dx is not None:
            _input_gradient(d1, d2, t, how, dx[tile])
    if dx is not None:
        dx = dx.view(*dy.shape[:-1], dx.shape[1])
    return sums.result(dx)


class _Backward:
    """Per tile: the product and the gradients of the pre-activations, in reused buffers."""

    def __init__(
        self, dy: Tensor, x: Tensor | None, t: Operands, kept: Kept, how: How, needs: Needs
    ) -> None:
        self.dy, self.x = Rows(dy), None if x is None else Rows(x)
        self.t, self.kept, self.how = t, kept, how
        self.tokens = dy.numel() // dy.shape[-1]
        step, (rows, columns) = how.step(self.tokens), how.block(self.tokens, t.width)
        dtype = t.down.dtype
        self.idle = not needs.pre and (kept.product is not None or not needs.down)
        self.recompute = kept.pre1 is None and not self.idle
        # What the elementwise kernel reads: recomputed, or kept and widened.
        reads = self.recompute or (how.wide and not self.idle)
        self.pre = _own(dy, t, how, self.tokens) if reads else None
        # What it writes: in narrow rounding over what it read, unless that is kept.
        self.d = None
        if needs.pre:
            over = reads and not how.wide
            self.d = self.pre if over else _Buffers(dy, t, how.form, step, t.width, dtype)
            wide = wide_dtype(dtype) if how.wide else dtype
            self.d_product = dy.new_empty((rows, columns), dtype=wide)
        # The product, where it is not kept; in narrow rounding over its own gradient.
        self.product = None
        if needs.down and kept.product is None:
            over = needs.pre and not how.wide
            self.product = self.d_product if over else dy.new_empty((step, t.width), dtype=dtype)

    def run(self, tile: slice) -> Tensor | None:
        """One tile: fills `d`, returns the product [t, I] where it is kept or needed."""
        if not self.idle:
            for span, local, columns in self.how.blocks(tile, self.tokens, self.t.width):
                self._block(span, local, columns)
        if self.product is not None:
            return self.product[: tile.stop - tile.start]
        return _rows(self.kept.product, tile)

    def _block(self, span: slice, local: slice, columns: slice) -> None:
        how, form, n = self.how, self.how.form, columns.stop - columns.start
        rows, pre = span.stop - span.start, self._read(span, columns)
        product = None if self.product is None else self.product[local, columns]
        if self.d is None:
            if product is not None:
                _combine(how, pre, product)
            return
        d_product = self.d_product[:rows, :n]
        gemm(self.dy[span], self.t.down[:, columns], d_product)
        gate, up = gate_up_columns(form, pre, slice(0, n))
        d_gate, d_up = gate_up_columns(form, self.d.rows(local), columns)
        if up is None or d_up is None:
            dispatch.gradient(d_product, gate, how.act, d_gate, product)
            return
        backend = dispatch.choose(how.act, gate, d_gate)
        backend.backward(d_product, gate, up, how.act, d_gate, d_up, product)

    def _read(self, span: slice, columns: slice) -> Pre:
        """The block's pre-activations: of this block alone."""
        form = self.how.form
        if self.pre is None:
            assert self.kept.pre1 is not None
            return self.kept.pre1[span], _rows(self.kept.pre2, span)
        pre = self.pre.corner(span.stop - span.start, columns.stop - columns.start, form)
        if self.recompute:
            assert self.x is not None
            project(self.x[span], self.t, form, columns, pre)
        else:
            assert self.kept.pre1 is not None
            whole = self.kept.pre1[span], _rows(self.kept.pre2, span)
            cut(form, self.t.width, columns, whole, pre, back=False)
        return pre


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
            # Over many tiles in float64, where there is one: of float32 gradients a running sum
            # in float32 is 7 % worse at tiles of seven than the tree torch sums all rows by.
            part = grad.sum(0, dtype=wide_dtype(grad.dtype))
            part = part if self.single or grad.device.type == "mps" else part.double()
            self.sums[name] = self.sums[name].add_(part) if name in self.sums else part

    def result(self, dx: Tensor | None) -> Gradients:
        dtype = self.t.down.dtype
        return Gradients(x=dx, **{name: total.to(dtype) for name, total in self.sums.items()})


def _combine(how: How, pre: Pre, product: Tensor) -> None:
    gate, up = gate_up_columns(how.form, pre, slice(0, product.shape[1]))
    if up is None:
        dispatch.value(gate, how.act, product)
    else:
        dispatch.choose(how.act, gate, product).forward(gate, up, how.act, product)


def _input_gradient(d1: Tensor, d2: Tensor | None, t: Operands, how: How, dx: Tensor) -> None:
    """dx = d1 @ w1 (+ d2 @ w2): in float32, rounded once, when "wide" or when dx is float32."""
    sum_wide = how.wide and dx.dtype != wide_dtype(dx.dtype)
    for span in spans(dx.shape[0], WIDE_ROWS if sum_wide else dx.shape[0]):
        part = dx[span]
        total = torch.empty_like(part, dtype=wide_dtype(part.dtype)) if sum_wide else part
        gemm(d1[span], t.w1, total)
        if d2 is not None and t.w2 is not None:
            gemm(d2[span], t.w2, total, accumulate=True)
        if sum_wide:
            part.copy_(total)


def _rows(tensor: Tensor | None, span: slice) -> Tensor | None:
    return None if tensor is None else tensor[span]
