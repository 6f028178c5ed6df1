"""gateup's own kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from gateup.bench.blocks import random_rows
from gateup.bench.protocol import Cell, Floats, serve
from gateup.ops import packed
from gateup.ops.packed_weight import PackedWeight

Copy = tuple[PackedWeight, PackedWeight, PackedWeight]


class Worker:
    label = "gateup"

    def prepare(self, cell: Cell) -> None:
        torch.set_num_threads(cell.threads)
        h, i = cell.hidden, cell.width
        self.copies: list[Copy] = []
        self.dtype = torch.bfloat16 if cell.kind == "bf16" else torch.float32
        shapes = ((i, h), (i, h), (h, i))
        raws = [random_rows(cell.kind, n, k, s) for s, (n, k) in enumerate(shapes)]
        for _ in range(cell.copies):
            g, u, d = (
                packed.pack(cell.kind, raw.copy(), n, k)
                for raw, (n, k) in zip(raws, shapes, strict=True)
            )
            self.copies.append((g, u, d))

    def inputs(self, x: Floats) -> Tensor:
        return torch.from_numpy(x).to(self.dtype)

    def run(self, copy: int, x: Tensor) -> Tensor:
        with torch.no_grad():
            return packed.gated_mlp(x, *self.copies[copy])

    def result(self, y: Tensor) -> Floats:
        result: Floats = y.float().numpy()
        return result


if __name__ == "__main__":
    serve(Worker())
