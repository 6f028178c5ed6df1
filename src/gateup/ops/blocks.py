"""A block of I's columns, for each form: the same columns of gate and of up."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from gateup.ops.gemm import linear
from gateup.ops.operands import Operands, gate_and_up

Pre = tuple[Tensor, "Tensor | None"]


def pairs(form: str, width: int, columns: slice) -> Iterator[tuple[slice, slice]]:
    """Where `columns` of I lie in w1's outputs, and in a block that holds only them.

    `width` is I. A fused w1 has the block's gate and up in its own layout, 2 columns each.
    """
    start, stop = columns.start, columns.stop
    n = stop - start
    if form.startswith("interleaved"):
        yield slice(2 * start, 2 * stop), slice(0, 2 * n)
    elif form.startswith("concat") and n < width:
        yield columns, slice(0, n)
        yield slice(width + start, width + stop), slice(n, 2 * n)
    elif form.startswith("concat"):
        yield slice(0, 2 * width), slice(0, 2 * width)
    else:
        yield columns, slice(0, n)


def pre_width(form: str, columns: int) -> int:
    """Columns of w1's output that hold `columns` of I."""
    return columns if form in ("split", "plain") else 2 * columns


def project(rows: Tensor, t: Operands, form: str, columns: slice, pre: Pre) -> None:
    """Columns of the first projections' outputs. rows [t, H]; pre [t, ·] of just the block."""
    for big, small in pairs(form, t.width, columns):
        bias = None if t.b1 is None else t.b1[big]
        linear(rows, t.w1[big], bias, pre[0][:, small])
    if t.w2 is not None and pre[1] is not None:
        bias = None if t.b2 is None else t.b2[columns]
        linear(rows, t.w2[columns], bias, pre[1])


def cut(form: str, width: int, columns: slice, whole: Pre, block: Pre, *, back: bool) -> None:
    """Copy the columns from whole outputs to a block of them, or `back`."""
    for big, small in pairs(form, width, columns):
        _copy(whole[0][:, big], block[0][:, small], back)
    if whole[1] is not None and block[1] is not None:
        _copy(whole[1][:, columns], block[1], back)


def _copy(whole: Tensor, block: Tensor, back: bool) -> None:
    if back:
        whole.copy_(block)
    else:
        block.copy_(whole)


def gate_up_columns(form: str, pre: Pre, columns: slice) -> tuple[Tensor, Tensor | None]:
    """(gate, up) of whole outputs, `columns` of each; (output, None) of the classic FFN."""
    if form == "plain":
        return pre[0][:, columns], None
    gate, up = gate_and_up(form, *pre)
    return gate[:, columns], up[:, columns]
