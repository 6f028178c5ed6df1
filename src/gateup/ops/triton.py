"""act(gate) ⊙ up by Triton kernels: on CUDA, and on the CPU in Triton's interpreter.

triton is imported when a tensor could be served by it, and not before.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from types import ModuleType

import torch
from torch import Tensor

ACTS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid", "identity", "gpt_oss")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Elements of a row per program.
BLOCK = 1024
# Products and sums may be contracted. Said, because Triton warns where it is left open.
OPTIONS = {"enable_fp_fusion": True}


@functools.cache
def _load(interpreted: bool) -> tuple[ModuleType | None, str]:
    """The kernels, or None and why they cannot be used.

    Triton settles when a kernel is defined whether it is interpreted, so each way has a module
    of its own, outside sys.modules.
    """
    spec = importlib.util.find_spec("gateup.ops.triton_kernels")
    if spec is None or spec.loader is None:
        return None, "gateup.ops.triton_kernels is missing"
    kernels = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(kernels)
    except ModuleNotFoundError as error:
        return None, f"triton is not installed ({error})"
    except ImportError as error:
        return None, f"triton does not load: {error}"
    return kernels, ""


def interpreted() -> bool:
    """Whether TRITON_INTERPRET asks for the interpreter, which takes tensors on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


class TritonBackend:
    """The Triton kernels behind `dispatch.Backend`."""

    name = "triton"

    def why_not(self, act: str, gate: Tensor, out: Tensor) -> str | None:
        """None when the kernels can serve, otherwise the reason in words."""
        device = gate.device.type
        if device != "cuda" and not (device == "cpu" and interpreted()):
            return f"the Triton kernels run on CUDA, the tensors are on {gate.device}"
        for tensor in (gate, out):
            if tensor.dtype not in DTYPES:
                return f"the Triton kernels know float32, bfloat16, float16, not {tensor.dtype}"
        if act not in ACTS:
            return f"the Triton kernels have no {act!r}"
        kernels, why = _load(interpreted())
        return None if kernels is not None else why

    def forward(self, gate: Tensor, up: Tensor, act: str, out: Tensor) -> None:
        """out = act(gate) ⊙ up; all [T, I], any strides, out of any of the three dtypes."""
        rows, columns = gate.shape
        if gate.numel():
            _kernels().forward[_grid(rows, columns)](
                *_strided(gate, up, out), columns, ACT=act, BLOCK=_block(columns), **OPTIONS
            )

    def backward(
        self,
        grad: Tensor,
        gate: Tensor,
        up: Tensor,
        act: str,
        d_gate: Tensor,
        d_up: Tensor,
        product: Tensor | None,
    ) -> None:
        """Write d_gate, d_up and, where given, the product; outputs may lie over inputs."""
        rows, columns = gate.shape
        if gate.numel():
            # A tensor has to stand in for a product that nobody asked for; it is not written.
            views = _strided(grad, gate, up, d_gate, d_up, d_up if product is None else product)
            _kernels().backward[_grid(rows, columns)](
                *views,
                columns,
                ACT=act,
                PRODUCT=product is not None,
                BLOCK=_block(columns),
                **OPTIONS,
            )


def _kernels() -> ModuleType:
    kernels, why = _load(interpreted())
    if kernels is None:
        raise RuntimeError(why)
    return kernels


def _block(columns: int) -> int:
    return min(BLOCK, 1 << max(0, columns - 1).bit_length())


def _grid(rows: int, columns: int) -> tuple[int, int]:
    return rows, -(-columns // _block(columns))


def _strided(*tensors: Tensor) -> list[Tensor | int]:
    """Each tensor with its two strides, in elements."""
    return [part for t in tensors for part in (t, t.stride(0), t.stride(1))]
