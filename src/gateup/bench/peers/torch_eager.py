"""torch's own operations, as transformers calls them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gateup.bench.blocks import random_rows
from gateup.bench.protocol import Cell, Floats, serve
from gateup.errors import UsageError

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Worker:
    label = f"torch {torch.__version__.split('+')[0]} eager"

    def prepare(self, cell: Cell) -> None:
        if cell.kind not in DTYPES:
            raise UsageError(f"torch computes no {cell.kind}", expected=", ".join(DTYPES))
        torch.set_num_threads(cell.threads)
        self.dtype = DTYPES[cell.kind]
        h, i = cell.hidden, cell.width
        one = [
            self._weight(cell.kind, n, k, s) for s, (n, k) in enumerate(((i, h), (i, h), (h, i)))
        ]
        self.copies = [[w.clone() for w in one] for _ in range(cell.copies)]

    def _weight(self, kind: str, n: int, k: int, seed: int) -> Tensor:
        return torch.from_numpy(random_rows(kind, n, k, seed)).view(self.dtype).view(n, k)

    def inputs(self, x: Floats) -> Tensor:
        return torch.from_numpy(x).to(self.dtype)

    def run(self, copy: int, x: Tensor) -> Tensor:
        gate, up, down = self.copies[copy]
        with torch.no_grad():
            return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    def result(self, y: Tensor) -> Floats:
        result: Floats = y.float().numpy()
        return result


if __name__ == "__main__":
    serve(Worker())
