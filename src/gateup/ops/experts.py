"""What the kernels of one expert layer are handed: its tensors, its form, its rows by expert.

Letters: T tokens, k experts per token, S = T·k rows, E experts, H hidden_size,
I intermediate_size. Row s of the sorted order is one (token, slot) pair; an expert's rows lie
together.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from gateup.errors import UsageError
from gateup.ops.gemm import wide_dtype
from gateup.ops.layouts import halves


class Bank(NamedTuple):
    """The tensors of `gateup.ops.moe.ExpertWeights`, in the dtype that is computed in."""

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None
    down_bias: Tensor | None


class How(NamedTuple):
    """What an op's schema can carry.

    layout   "concat:out_in": the fused layout's word and the orientation
    mode     "slots": each step in the bank's dtype, a token's k results summed at once in float32,
             as transformers' grouped_mm; "experts": added up expert by expert in x's dtype, as
             transformers' eager loop; "wide": float32 from GEMM to GEMM and in all sums
    keep     what backward gets: 0 nothing but the inputs, 1 gate and up, 2 the product too,
             3 the experts' outputs too
    tile     rows computed at a time; 0: all of an expert's
    """

    act: str
    layout: str
    mode: str
    keep: int
    tile: int

    @property
    def wide(self) -> bool:
        return self.mode == "wide"

    @property
    def out_in(self) -> bool:
        return self.layout.endswith(":out_in")

    def halves(self, fused: Tensor) -> tuple[Tensor, Tensor]:
        return halves(fused, self.layout.partition(":")[0])

    @property
    def grouped(self) -> bool:
        """All experts at once, step by step; a tile would not bound that."""
        return self.mode == "slots" and not self.tile

    def oriented(self, weight: Tensor) -> Tensor:
        """[..., in, out] of a weight, or of a stack of them; a view."""
        return weight.transpose(-2, -1) if self.out_in else weight


class Kept(NamedTuple):
    """Sorted rows kept for backward: gate_up [S, 2I], product [S, I], out [S, H]; or empty."""

    gate_up: Tensor
    product: Tensor
    out: Tensor


class Needs(NamedTuple):
    """Which gradients are asked for."""

    x: bool
    weights: bool
    gate_up: bool
    down: bool
    gate_up_bias: bool
    down_bias: bool

    @property
    def product(self) -> bool:
        """Whether act(gate) ⊙ up is needed again, or the experts' outputs made from it."""
        return self.weights or self.down

    @property
    def pre(self) -> bool:
        """Whether the gradient of gate and up is needed."""
        return self.x or self.gate_up or self.gate_up_bias


class Sorted(NamedTuple):
    """Rows by expert.

    place   [S], where each sorted row lies in index.flatten()
    token   [S], its token
    expert  [S], its expert, ascending
    """

    place: Tensor
    token: Tensor
    expert: Tensor

    def counts(self, num_experts: int) -> Tensor:
        """[E], rows per expert; UsageError for an expert that does not exist."""
        if self.expert.numel():
            low, high = int(self.expert[0]), int(self.expert[-1])
            if low < 0 or high >= num_experts:
                raise UsageError(
                    f"index names expert {low if low < 0 else high}",
                    expected=f"0 to {num_experts - 1}: there are {num_experts} experts",
                )
        return torch.bincount(self.expert, minlength=num_experts)

    def tiles(
        self, num_experts: int, step: int, *, backwards: bool = False
    ) -> Iterator[tuple[int, slice, int]]:
        """(expert, some of its rows, tiles it has), experts without rows left out."""
        counts = self.counts(num_experts).tolist()
        ends = [0, *accumulate(counts)]
        for e in reversed(range(num_experts)) if backwards else range(num_experts):
            size = step or max(1, counts[e])
            for low in range(ends[e], ends[e + 1], size):
                yield e, slice(low, min(low + size, ends[e + 1])), -(-counts[e] // size)


def sort_rows(index: Tensor, mode: str) -> Sorted:
    """Rows of index [T, k] by expert.

    Within an expert they come in the order in which transformers' implementations hand them to
    the GEMM, whose bits depend on it: by slot, then token in its eager loop, and as an unstable
    sort leaves them in its grouped_mm.
    """
    tokens, k = index.shape
    if mode == "experts":
        expert, order = torch.sort(index.t().reshape(-1), stable=True)
        slot, token = order // max(1, tokens), order % max(1, tokens)
        return Sorted(token * k + slot, token, expert)
    expert, place = torch.sort(index.reshape(-1))
    return Sorted(place, place // k, expert)


def empty_kept(rows: int, bank: Bank, how: How) -> Kept:
    """Unwritten memory for what `how.keep` asks for, in the bank's dtype."""
    width, hidden = how.oriented(bank.down).shape[-2:]
    shapes = ((rows, 2 * width), (rows, width), (rows, hidden))
    new = bank.down.new_empty
    return Kept(*(new(shape if how.keep > level else (0,)) for level, shape in enumerate(shapes)))


def weighted_dtype(bank: Bank, weights: Tensor, how: How) -> torch.dtype:
    """Of an expert's output times its weight: bf16 times float32 (Mixtral, DeepSeek-V3) is float32.

    y's gradient is rounded to it before anything else, as autograd does.
    """
    dtype = torch.promote_types(bank.down.dtype, weights.dtype)
    return wide_dtype(dtype) if how.wide else dtype


class Gradients(NamedTuple):
    """Of x [T, H], of the routing weights [T, k] and of the bank; empty where not asked for."""

    x: Tensor
    weights: Tensor
    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor
    down_bias: Tensor


def empty_gradients(x: Tensor, weights: Tensor, bank: Bank, needs: Needs) -> Gradients:
    """Unwritten memory, of the shapes and dtypes of what is differentiated."""
    return Gradients(
        *(
            x.new_empty((0,)) if t is None or not need else t.new_empty(t.shape)
            for t, need in zip((x, weights, *bank), needs, strict=True)
        )
    )
