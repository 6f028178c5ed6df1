"""ONNX Runtime's MatMulNBits: 4 and 8 bits in blocks of 32, computed in int8."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from gateup.bench.protocol import Cell, Floats, serve
from gateup.errors import UsageError

BLOCK = 32
# What stands for what: the peers' formats are not GGUF's, their widths are.
BITS = {"q8_0": 8, "q4_0": 4, "q4_k": 4}
INT8 = 4  # accuracy_level: activations in int8


def _weight(name: str, n: int, k: int, bits: int, seed: int) -> list[Any]:
    generator = np.random.default_rng(seed)
    codes = generator.integers(0, 256, (n, k // BLOCK, BLOCK * bits // 8), np.uint8)
    scales = np.full((n, k // BLOCK), 2.0**-10, np.float32)
    return [
        numpy_helper.from_array(codes, f"{name}_codes"),
        numpy_helper.from_array(scales, f"{name}_scales"),
    ]


def _product(name: str, x: str, n: int, k: int, bits: int) -> Any:
    return helper.make_node(
        "MatMulNBits",
        [x, f"{name}_codes", f"{name}_scales"],
        [name],
        domain="com.microsoft",
        N=n,
        K=k,
        bits=bits,
        block_size=BLOCK,
        accuracy_level=INT8,
    )


def model(cell: Cell, bits: int) -> bytes:
    """The FFN as an ONNX model."""
    h, i = cell.hidden, cell.width
    nodes = [
        _product("gate", "x", i, h, bits),
        _product("up", "x", i, h, bits),
        helper.make_node("Sigmoid", ["gate"], ["s"]),
        helper.make_node("Mul", ["gate", "s"], ["act"]),
        helper.make_node("Mul", ["act", "up"], ["product"]),
        _product("down", "product", h, i, bits),
    ]
    shapes = (("gate", i, h), ("up", i, h), ("down", h, i))
    initializers = [
        t for s, (name, n, k) in enumerate(shapes) for t in _weight(name, n, k, bits, s)
    ]
    graph = helper.make_graph(
        nodes,
        "ffn",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", h])],
        [helper.make_tensor_value_info("down", TensorProto.FLOAT, ["T", h])],
        initializers,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    serialized: bytes = made.SerializeToString()
    return serialized


class Worker:
    label = f"ONNX Runtime {importlib.metadata.version('onnxruntime')} MatMulNBits"

    def prepare(self, cell: Cell) -> None:
        if cell.kind not in BITS:
            raise UsageError(f"MatMulNBits has nothing for {cell.kind}", expected=", ".join(BITS))
        # Each copy is a session. With threads of its own those at rest wait busily on the cores
        # of the others (T=1: 17 ms for 5.5); without waiting busily 6.3.
        onnxruntime.set_global_thread_pool_sizes(cell.threads, 1)
        options = onnxruntime.SessionOptions()
        options.use_per_session_threads = False
        serialized = model(cell, BITS[cell.kind])
        self.copies = [
            onnxruntime.InferenceSession(serialized, options, ["CPUExecutionProvider"])
            for _ in range(cell.copies)
        ]

    def inputs(self, x: Floats) -> Floats:
        return x

    def run(self, copy: int, x: Floats) -> Any:
        return self.copies[copy].run(None, {"x": x})[0]

    def result(self, y: Any) -> Floats:
        result: Floats = y
        return result


if __name__ == "__main__":
    serve(Worker())
