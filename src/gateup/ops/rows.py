"""Tokens as rows: any [..., W] read as [T, W], all of it or a tile, copying only what it must."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor


def flat(x: Tensor) -> Tensor:
    """[..., W] as [T, W]; a view where the strides allow it. T = 1 for a 1-D tensor."""
    if x.dim() == 2:
        return x
    # Not -1: of a last axis of no elements torch could not tell how many rows there are.
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


class Rows:
    """Tiles of [..., W] as [t, W]: views, or copies of one tile at a time where no view exists."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.view = _viewed(x)

    def __getitem__(self, span: slice) -> Tensor:
        if self.view is not None:
            return self.view[span]
        index = torch.arange(span.start, span.stop, device=self.x.device)
        return self.x[torch.unravel_index(index, self.x.shape[:-1])]


def _viewed(x: Tensor) -> Tensor | None:
    try:
        return x.view(-1, x.shape[-1])
    except RuntimeError:
        return None


def spans(total: int, step: int) -> Iterator[slice]:
    """[0, total) in steps, the last one short."""
    for start in range(0, total, step):
        yield slice(start, min(start + step, total))
