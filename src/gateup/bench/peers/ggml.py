"""llama.cpp's ggml through ctypes, from the llama-cpp-python package: one graph of the FFN.

Run with an argument that names a buffer type ("CPU_REPACK", "AMX") weights lie in that one;
without one in the ordinary one.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import sys
from ctypes import c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gateup.bench.blocks import random_rows
from gateup.bench.protocol import Cell, Floats, serve
from gateup.errors import UsageError

# ggml's numbers for the types of weights.
TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "q4_k": 12,
    "q5_k": 13,
    "q6_k": 14,
    "iq4_nl": 20,
    "bf16": 30,
}


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


# name -> (result, arguments); pointers are opaque.
_POINTER_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggml_init": (c_void_p, (_InitParams,)),
    "ggml_new_tensor_2d": (c_void_p, (c_void_p, c_int, c_int64, c_int64)),
    "ggml_mul_mat": (c_void_p, (c_void_p,) * 3),
    "ggml_swiglu_split": (c_void_p, (c_void_p,) * 3),
    "ggml_new_graph": (c_void_p, (c_void_p,)),
    "ggml_build_forward_expand": (None, (c_void_p,) * 2),
    "ggml_backend_cpu_init": (c_void_p, ()),
    "ggml_backend_cpu_set_n_threads": (None, (c_void_p, c_int)),
    "ggml_backend_cpu_buffer_type": (c_void_p, ()),
    "ggml_backend_alloc_ctx_tensors_from_buft": (c_void_p, (c_void_p,) * 2),
    "ggml_backend_tensor_set": (None, (c_void_p, c_void_p, c_size_t, c_size_t)),
    "ggml_backend_tensor_get": (None, (c_void_p, c_void_p, c_size_t, c_size_t)),
    "ggml_backend_graph_compute": (c_int, (c_void_p,) * 2),
    "ggml_backend_get_device": (c_void_p, (c_void_p,)),
    "ggml_backend_dev_backend_reg": (c_void_p, (c_void_p,)),
    "ggml_backend_reg_get_proc_address": (c_void_p, (c_void_p, c_char_p)),
    "ggml_backend_buft_name": (c_char_p, (c_void_p,)),
    "ggml_gallocr_new": (c_void_p, (c_void_p,)),
    "ggml_gallocr_alloc_graph": (c_bool, (c_void_p,) * 2),
    "ggml_free": (None, (c_void_p,)),
}


class _Library:
    """The functions of ggml's shared libraries, with their types."""

    def __init__(self) -> None:
        found = importlib.util.find_spec("llama_cpp")
        if found is None or found.origin is None:
            raise ImportError("llama-cpp-python is not installed")
        folder = Path(found.origin).parent / "lib"
        paths = [folder / f"lib{name}.so" for name in ("ggml-base", "ggml-cpu", "ggml")]
        libraries = [ctypes.CDLL(str(p), mode=ctypes.RTLD_GLOBAL) for p in paths if p.exists()]
        for name, (result, arguments) in _POINTER_FUNCTIONS.items():
            function = next((getattr(lib, name) for lib in libraries if hasattr(lib, name)), None)
            if function is None:
                raise ImportError(f"this build of ggml has no {name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("ggml_"), function)

    def __getattr__(self, name: str) -> Any:  # set in __init__; for the type checker
        raise AttributeError(name)


@dataclass
class _Graph:
    graph: Any
    x: Any
    y: Any
    allocator: Any


class Worker:
    def __init__(self, buffer: str | None) -> None:
        self.buffer = buffer
        self.lib = _Library()
        version = importlib.metadata.version("llama-cpp-python")
        self.label = f"ggml of llama-cpp-python {version}" + (f", {buffer}" if buffer else "")
        self.backend = self.lib.backend_cpu_init()

    def prepare(self, cell: Cell) -> None:
        lib = self.lib
        if cell.kind not in TYPES:
            raise UsageError(f"ggml has no {cell.kind}")
        lib.backend_cpu_set_n_threads(self.backend, cell.threads)
        self.cell, h, i = cell, cell.hidden, cell.width
        shapes = ((i, h), (i, h), (h, i))
        context = lib.init(_InitParams(1 << 20, None, True))
        self.copies = [
            [lib.new_tensor_2d(context, TYPES[cell.kind], k, n) for n, k in shapes]
            for _ in range(cell.copies)
        ]
        if not lib.backend_alloc_ctx_tensors_from_buft(context, self._buffer_type()):
            raise MemoryError("ggml cannot allocate the weights")
        raws = [random_rows(cell.kind, n, k, s) for s, (n, k) in enumerate(shapes)]
        for tensors in self.copies:
            for tensor, raw in zip(tensors, raws, strict=True):
                data = np.ascontiguousarray(raw)
                lib.backend_tensor_set(tensor, data.ctypes.data, 0, data.nbytes)
        self.graphs: dict[tuple[int, int], _Graph] = {}

    def _buffer_type(self) -> Any:
        lib = self.lib
        if self.buffer is None:
            return lib.backend_cpu_buffer_type()
        device = lib.backend_get_device(self.backend)
        registry = lib.backend_dev_backend_reg(device)
        address = lib.backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
        if not address:
            raise ImportError("this build of ggml has no further buffer types")
        listed = ctypes.CFUNCTYPE(ctypes.POINTER(c_void_p), c_void_p)(address)(device)
        names = []
        for pointer in listed:
            if not pointer:
                break
            names.append(lib.backend_buft_name(pointer).decode())
            if names[-1] == self.buffer:
                return pointer
        raise ImportError(f"this build of ggml has the buffer types {names}, not {self.buffer}")

    def inputs(self, x: Floats) -> Floats:
        return np.ascontiguousarray(x)

    def _graph(self, copy: int, tokens: int) -> _Graph:
        """Built once per copy and T; every call computes it anew."""
        lib, key = self.lib, (copy, tokens)
        if key not in self.graphs:
            context = lib.init(_InitParams(1 << 20, None, True))
            gate, up, down = self.copies[copy]
            x = lib.new_tensor_2d(context, TYPES["f32"], self.cell.hidden, tokens)
            product = lib.swiglu_split(
                context, lib.mul_mat(context, gate, x), lib.mul_mat(context, up, x)
            )
            y = lib.mul_mat(context, down, product)
            graph = lib.new_graph(context)
            lib.build_forward_expand(graph, y)
            allocator = lib.gallocr_new(lib.backend_cpu_buffer_type())
            if not lib.gallocr_alloc_graph(allocator, graph):
                raise MemoryError("ggml cannot allocate the graph")
            self.graphs[key] = _Graph(graph, x, y, allocator)
        return self.graphs[key]

    def run(self, copy: int, x: Floats) -> Any:
        graph = self._graph(copy, x.shape[0])
        self.lib.backend_tensor_set(graph.x, x.ctypes.data, 0, x.nbytes)
        if self.lib.backend_graph_compute(self.backend, graph.graph):
            raise RuntimeError("ggml could not compute the graph")
        return graph.y, x.shape[0]

    def result(self, y: Any) -> Floats:
        tensor, tokens = y
        out = np.empty((tokens, self.cell.hidden), np.float32)
        self.lib.backend_tensor_get(tensor, out.ctypes.data, 0, out.nbytes)
        return out


if __name__ == "__main__":
    serve(Worker(sys.argv[1] if len(sys.argv) > 1 else None))
