"""What the kernels of one MLP are handed: its tensors, its form, and what is asked of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gateup.ops.layouts import FUSED, halves

# How the first projections lie: "split" w1 gate and w2 up, [I, H] each; "plain" w1 alone, of the
# classic FFN; the words of a fused layout: w1 [2I, H] holds both.
FORMS = ("split", "plain", *FUSED)


class Operands(NamedTuple):
    """w1 [I or 2I, H]; w2 [I, H] or None; down [H, I]; biases of their outputs' widths or None."""

    w1: Tensor
    w2: Tensor | None
    down: Tensor
    b1: Tensor | None
    b2: Tensor | None
    b_down: Tensor | None

    def cast(self, dtype: torch.dtype) -> Operands:
        """The same in `dtype`; tensors that have it already are not copied."""
        if all(t is None or t.dtype == dtype for t in self):
            return self
        w1, w2, down, *biases = (None if t is None else t.to(dtype) for t in self)
        assert w1 is not None
        assert down is not None
        return Operands(w1, w2, down, *biases)

    @property
    def width(self) -> int:
        """I"""
        return self.down.shape[1]


class Kept(NamedTuple):
    """What forward kept for backward: w1's output, w2's output, the product; [T, ·] or None."""

    pre1: Tensor | None
    pre2: Tensor | None
    product: Tensor | None


class Needs(NamedTuple):
    """Which gradients are asked for, in the order of the op's inputs."""

    x: bool
    w1: bool
    w2: bool
    down: bool
    b1: bool
    b2: bool
    b_down: bool

    @property
    def pre1(self) -> bool:
        return self.x or self.w1 or self.b1

    @property
    def pre2(self) -> bool:
        return self.x or self.w2 or self.b2

    @property
    def pre(self) -> bool:
        """Whether the gradient of any pre-activation is needed."""
        return self.pre1 or self.pre2


class Gradients(NamedTuple):
    x: Tensor | None = None
    w1: Tensor | None = None
    w2: Tensor | None = None
    down: Tensor | None = None
    b1: Tensor | None = None
    b2: Tensor | None = None
    b_down: Tensor | None = None


def gate_and_up(form: str, pre1: Tensor, pre2: Tensor | None) -> tuple[Tensor, Tensor]:
    """(gate, up) [..., I] from the projections' outputs; views of a fused one."""
    if pre2 is not None:
        return pre1, pre2
    return halves(pre1, form)
