"""act(gate) ⊙ up on the CPU by the C++ kernels of csrc/, where they were built.

The kernels compute in float32 and round once, as every backend of `dispatch` does. They do not
have torch's bits (over all 65,536 bf16 gates, torch's SiLU rounds 17 wrongly, ours none), so
"hf" rounding never comes here.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from gateup.errors import UsageError

# The number csrc/module.cpp gives its interface.
INTERFACE = 2
# As enum Act and enum DType in csrc/act_and_mul.hpp.
ACTS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid", "identity", "gpt_oss")
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# Elements that are worth one more thread; torch's own operators use the same number.
GRAIN = 1 << 15

_INSTEAD = "act ⊙ up runs on plain torch instead, to the same accuracy but slower"
REMEDY = "install a C++17 compiler (g++ or clang) and Python's headers, then reinstall gateup"

# (address, row stride, step, dtype), strides in elements: what the kernels take for a tensor.
_View = tuple[int, int, int, int]
_NOTHING: _View = (0, 0, 1, 0)


@dataclass(frozen=True, slots=True)
class Status:
    """Whether the C++ kernels are there, and in words what runs.

    isa   instruction set in use, "" without kernels
    team  what runs the threads: "openmp" (torch's own team), "std::thread", or ""
    """

    available: bool
    text: str
    isa: str = ""
    team: str = ""

    def __str__(self) -> str:
        return self.text


@functools.cache
def load() -> tuple[ModuleType | None, str]:
    """The extension module, or None and why it cannot be used.

    Raises UsageError where GATEUP_ISA names an instruction set that is not there.
    """
    try:
        module = importlib.import_module("gateup._native")
    except ModuleNotFoundError:
        return None, "the C++ kernels (gateup._native) were not built when gateup was installed"
    except ImportError as error:
        return None, f"the C++ kernels (gateup._native) do not load: {error}"
    found = module.INTERFACE
    if found != INTERFACE:
        return None, f"the C++ kernels are of another build (interface {found}, not {INTERFACE})"
    try:
        module.isa()
    except ValueError as error:
        raise UsageError(
            f"GATEUP_ISA: {error}",
            where="environment variable GATEUP_ISA",
            remedy="one of those, or none: the widest is taken",
        ) from None
    module.use_openmp(_torch_openmp())
    return module, ""


def _torch_openmp() -> int:
    """Address of GOMP_parallel in the OpenMP runtime torch has loaded, 0 without one."""
    if not hasattr(os, "RTLD_NOLOAD"):
        return 0
    folder = Path(torch.__file__).parent / "lib"
    bundled = [str(p) for kind in ("gomp", "iomp", "omp") for p in folder.glob(f"lib{kind}*.so*")]
    for name in (*bundled, "libgomp.so.1", "libiomp5.so", "libomp.so.5", "libomp.so"):
        try:
            # NOLOAD: only a runtime that is there already; a second team would fight the first.
            library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            address = ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
        return address or 0
    return 0


def status() -> Status:
    """What is there, what is missing, and what is used instead."""
    module, why = load()
    if module is None:
        return Status(False, f"{why}; {_INSTEAD}. Remedy: {REMEDY}.")
    isa, team = str(module.isa()), str(module.team())
    threads = "torch's OpenMP threads" if team == "openmp" else "threads of its own"
    text = f"C++ kernels for {isa} on {threads}; for rounding wide, on the CPU."
    return Status(True, text, isa, team)


class NativeBackend:
    """The C++ kernels behind `dispatch.Backend`."""

    name = "native"

    def why_not(self, act: str, gate: Tensor, out: Tensor) -> str | None:
        """None when the kernels can serve, otherwise the reason in words."""
        if gate.device.type != "cpu" or out.device.type != "cpu":
            return f"the C++ kernels run on the CPU, the tensors are on {gate.device}"
        for tensor in (gate, out):
            if tensor.dtype not in DTYPES:
                return f"the C++ kernels know float32, bfloat16 and float16, not {tensor.dtype}"
        if act not in ACTS:
            return f"the C++ kernels have no {act!r}"
        module, why = load()
        return None if module is not None else why

    def forward(self, gate: Tensor, up: Tensor, act: str, out: Tensor) -> None:
        """out = act(gate) ⊙ up; all [T, I], any strides, out of any of the three dtypes."""
        gate, up = _readable(gate, up)
        target = _writable(out)
        rows, cols = _extent(gate, up, target)
        extension().forward(
            ACTS.index(act),
            rows,
            cols,
            *(_view(t, rows) for t in (gate, up, target)),
            _threads(gate),
        )
        _deliver(target, out)

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
        """Write d_gate, d_up and, where given, the product act(gate) ⊙ up.

        Outputs may lie exactly where inputs lie: a block is read whole before it is written.
        """
        grad = grad if _dense(grad) else grad.contiguous()
        gate, up = _readable(gate, up)
        pair = (d_gate, d_up) if _pair(d_gate, d_up) else (_writable(d_gate), _writable(d_up))
        target = None if product is None else _writable(product)
        given = [grad, gate, up, *pair, *([] if target is None else [target])]
        rows, cols = _extent(*given)
        views = [_view(t, rows) for t in given]
        if target is None:
            views.append(_NOTHING)
        extension().backward(ACTS.index(act), rows, cols, *views, _threads(gate))
        _deliver(pair[0], d_gate)
        _deliver(pair[1], d_up)
        if target is not None and product is not None:
            _deliver(target, product)


def exp(x: Tensor) -> Tensor:
    """e^x of contiguous float32 x <= 0, by the kernels: for measuring its error."""
    out = torch.empty_like(x)
    extension().exp(x.data_ptr(), out.data_ptr(), x.numel())
    return out


def extension() -> ModuleType:
    module, why = load()
    if module is None:
        raise RuntimeError(why)
    return module


def _dense(tensor: Tensor) -> bool:
    """Rows of neighbouring elements, which is what the kernels address."""
    return tensor.stride(1) == 1 or tensor.shape[1] <= 1


def _pair(a: Tensor, b: Tensor) -> bool:
    """Whether a and b are the two interleaved halves of one matrix."""
    return (
        a.dtype == b.dtype
        and a.stride() == b.stride()
        and a.stride(1) == 2
        and a.shape[1] > 1
        and abs(a.data_ptr() - b.data_ptr()) == a.element_size()
    )


def _readable(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    if _pair(gate, up):
        return gate, up
    # The kernels read gate and up in one dtype; the protocol promises it.
    return tuple(t if _dense(t) else t.contiguous() for t in (gate, up))  # type: ignore[return-value]


def _writable(out: Tensor) -> Tensor:
    """`out` itself, or dense memory to write in its stead (see _deliver)."""
    return out if _dense(out) else torch.empty_like(out, memory_format=torch.contiguous_format)


def _deliver(written: Tensor, out: Tensor) -> None:
    if written is not out:
        out.copy_(written)


def _extent(*tensors: Tensor) -> tuple[int, int]:
    """(rows, cols); one long row where all are contiguous, so that no block is cut short."""
    rows, cols = tensors[0].shape
    if all(t.is_contiguous() for t in tensors):
        return 1, rows * cols
    return rows, cols


def _view(tensor: Tensor, rows: int) -> _View:
    step = tensor.stride(1) if tensor.shape[1] > 1 else 1
    return tensor.data_ptr(), tensor.stride(0) if rows > 1 else 0, step, DTYPES[tensor.dtype]


def _threads(tensor: Tensor) -> int:
    return max(1, min(torch.get_num_threads(), -(-tensor.numel() // GRAIN)))
