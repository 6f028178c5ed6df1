"""OpenVINO's CPU plugin, by how it multiplies: an argument says in what activations are.

bf16     its own choice where the processor has AMX
int8     rounded while it runs, with a scale per group of a row ("dynamic quantisation")
int8-128 the same with 4-bit weights in groups of 128

8-bit weights have a scale per output channel, 4-bit ones per group of 32 as GGUF's; groups of 128
are a coarser format of 4.125 bits.

Settings matter, all measured at 4096 × 14336 on AMX, ms at T=1 / 8 / 64: activations of 8-bit
weights in groups of 256 7.1 / 8.4 / 22, of 32 7.4 / 9.3 / 32, of whole rows (u8 codes
around a zero point) 25 / 88 / 142; in float32 12 / 28 / 64; in bf16 10 / 17 / 22. Four bits in
groups of 32 7.0 / 13 / 38, in bf16 9.1 / 22 / 28; in groups of 128, both weights' and activations',
4.8 / 5.6 / 21.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops

from gateup.bench.protocol import Cell, Floats, serve
from gateup.errors import UsageError

# 4-bit weights' groups, and int8 activations' groups with 8-bit weights.
GROUPS = {"bf16": 32, "int8": 32, "int8-128": 128}
ROW_GROUP = 256
KINDS = {
    "bf16": ("f32", "bf16", "q8_0", "q4_0", "q4_k"),
    "int8": ("q8_0", "q4_0", "q4_k"),
    "int8-128": ("q4_0", "q4_k"),
}
SCALE = np.float16(2.0**-10)


def _int8(n: int, k: int, generator: np.random.Generator) -> Any:
    """Codes of one byte, a scale per output channel."""
    codes = ops.convert(ops.constant(generator.integers(-127, 128, (n, k), np.int8)), "f16")
    return ops.convert(ops.multiply(codes, ops.constant(np.full((n, 1), SCALE))), "f32")


def _int4(group: int) -> Callable[[int, int, np.random.Generator], Any]:
    """Codes of 4 bits, a scale per group."""

    def made(n: int, k: int, generator: np.random.Generator) -> Any:
        packed = generator.integers(0, 256, n * k // 2, np.uint8)
        tensor = openvino.Tensor(packed, openvino.Shape([n, k // group, group]), openvino.Type.i4)
        codes = ops.convert(ops.constant(tensor, shared_memory=False), "f16")
        grouped = ops.multiply(codes, ops.constant(np.full((n, k // group, 1), SCALE)))
        return ops.convert(ops.reshape(grouped, [n, k], False), "f32")

    return made


def _dense(n: int, k: int, generator: np.random.Generator) -> Any:
    row = generator.standard_normal(1 << 20, np.float32) / np.float32(k**0.5)
    return ops.constant(np.resize(row, (n, k)))


def model(cell: Cell, way: str) -> Any:
    """The FFN for any number of rows of x."""
    h, i = cell.hidden, cell.width
    generator = np.random.default_rng(0)
    make: Any = {"q8_0": _int8, "f32": _dense, "bf16": _dense}.get(cell.kind, _int4(GROUPS[way]))
    x = ops.parameter([-1, h], np.float32)
    gate, up = (ops.matmul(x, make(i, h, generator), False, True) for _ in range(2))
    y = ops.matmul(ops.multiply(ops.swish(gate), up), make(h, i, generator), False, True)
    return openvino.Model([y], [x], "ffn")


class Worker:
    def __init__(self, way: str) -> None:
        self.way = way
        self.label = f"OpenVINO {importlib.metadata.version('openvino')}, {way}"

    def prepare(self, cell: Cell) -> None:
        if cell.kind not in KINDS[self.way]:
            raise UsageError(f"OpenVINO has nothing for {cell.kind}", expected=", ".join(KINDS))
        core = openvino.Core()
        settings: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": cell.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "bf16",
        }
        if cell.kind == "f32" or self.way != "bf16":
            settings["INFERENCE_PRECISION_HINT"] = "f32"
        if self.way != "bf16":
            group = ROW_GROUP if cell.kind == "q8_0" else GROUPS[self.way]
            settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = group
        self.copies = [
            core.compile_model(model(cell, self.way), "CPU", settings).create_infer_request()
            for _ in range(cell.copies)
        ]

    def inputs(self, x: Floats) -> Floats:
        return x

    def run(self, copy: int, x: Floats) -> Any:
        return self.copies[copy].infer([x], share_inputs=True, share_outputs=True)[0]

    def result(self, y: Any) -> Floats:
        return np.array(y, np.float32)


if __name__ == "__main__":
    serve(Worker(sys.argv[1]))
