"""OpenVINO's CPU plugin: bf16, and int8 or 4 bits with one scale per output channel or group."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops

from gateup.bench.protocol import Cell, Floats, serve
from gateup.errors import UsageError

GROUP = 128
KINDS = ("f32", "bf16", "q8_0", "q4_0", "q4_k")


def _int8(n: int, k: int, generator: np.random.Generator) -> Any:
    """Codes of one byte, a scale per output channel."""
    codes = ops.constant(generator.integers(-127, 128, (n, k), np.int8))
    scales = ops.constant(np.full((n, 1), 2.0**-10, np.float32))
    return ops.multiply(ops.convert(codes, "f32"), scales)


def _int4(n: int, k: int, generator: np.random.Generator) -> Any:
    """Codes of 4 bits around 8, a scale per group of 128."""
    packed = generator.integers(0, 256, n * k // 2, np.uint8)
    shape = openvino.Shape([n, k // GROUP, GROUP])
    tensor = openvino.Tensor(packed, shape, openvino.Type.u4)
    codes = ops.convert(ops.constant(tensor, shared_memory=False), "f16")
    middle = ops.constant(np.full((1, 1, 1), 8, np.float16))
    scales = ops.constant(np.full((n, k // GROUP, 1), 2.0**-10, np.float16))
    grouped = ops.multiply(ops.subtract(codes, middle), scales)
    return ops.convert(ops.reshape(grouped, [n, k], False), "f32")


def _dense(n: int, k: int, generator: np.random.Generator) -> Any:
    return ops.constant(generator.standard_normal((n, k), np.float32) / np.float32(k**0.5))


MAKERS = {"f32": _dense, "bf16": _dense, "q8_0": _int8, "q4_0": _int4, "q4_k": _int4}


def model(cell: Cell) -> Any:
    h, i = cell.hidden, cell.width
    generator = np.random.default_rng(0)
    make = MAKERS[cell.kind]
    x = ops.parameter([-1, h], np.float32)
    gate, up = (ops.matmul(x, make(i, h, generator), False, True) for _ in range(2))
    y = ops.matmul(ops.multiply(ops.swish(gate), up), make(h, i, generator), False, True)
    return openvino.Model([y], [x], "ffn")


class Worker:
    label = f"OpenVINO {importlib.metadata.version('openvino')}"

    def prepare(self, cell: Cell) -> None:
        if cell.kind not in KINDS:
            raise UsageError(f"OpenVINO has nothing for {cell.kind}", expected=", ".join(KINDS))
        core = openvino.Core()
        settings = {
            "INFERENCE_NUM_THREADS": cell.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32" if cell.kind == "f32" else "bf16",
        }
        if cell.kind.startswith("q"):
            settings["INFERENCE_PRECISION_HINT"] = "f32"
            settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 2**32 - 1 if cell.kind == "q8_0" else 32
        self.copies = [
            core.compile_model(model(cell), "CPU", settings).create_infer_request()
            for _ in range(cell.copies)
        ]

    def inputs(self, x: Floats) -> Floats:
        return x

    def run(self, copy: int, x: Floats) -> Any:
        return self.copies[copy].infer([x], share_inputs=True, share_outputs=True)[0]

    def result(self, y: Any) -> Floats:
        return np.array(y, np.float32)


if __name__ == "__main__":
    serve(Worker())
