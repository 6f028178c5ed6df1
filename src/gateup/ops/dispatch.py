"""Which kernel computes act(gate) ⊙ up, and the one written in plain torch.

Every backend computes in float32 (float64 for float64) and rounds once to the output's dtype, so
choosing another changes no result beyond that rounding. "hf" rounding, untiled, does not come
here: it must have torch's own bits, step by step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from gateup.errors import UsageError
from gateup.ops.activations import activation
from gateup.ops.native import NativeBackend
from gateup.ops.triton import TritonBackend

# Elements a block of the torch backend holds at a time: 1 MiB in float32, so that its
# temporaries stay in a core's cache and never reach the size of the whole.
BLOCK = 1 << 18


class Backend(Protocol):
    """An elementwise kernel. Tensors are 2-D [T, I] of any strides (halves of a fused one too).

    All inputs of a call have one dtype and all outputs one; the outputs' may be lower (float32
    in, bf16 out). An output may be the same memory as an input (same data pointer and strides):
    d_gate over gate, d_up over up, the product over grad or gate.
    """

    name: str

    def why_not(self, act: str, gate: Tensor, out: Tensor) -> str | None:
        """None when it can serve, otherwise the reason in words."""

    def forward(self, gate: Tensor, up: Tensor, act: str, out: Tensor) -> None:
        """out = act(gate) ⊙ up; `out` may be of a lower precision than the inputs."""

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
        """Write d_gate and d_up, and act(gate) ⊙ up to `product` where one is given."""


class TorchBackend:
    """Plain torch, block by block; serves everywhere."""

    name = "torch"

    def why_not(self, act: str, gate: Tensor, out: Tensor) -> str | None:
        return None

    def forward(self, gate: Tensor, up: Tensor, act: str, out: Tensor) -> None:
        chosen = activation(act)
        for rows in _blocks(gate):
            out[rows] = chosen.gated(_wide(gate[rows]), _wide(up[rows]))

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
        chosen = activation(act)
        for rows in _blocks(gate):
            dh, g, u = _wide(grad[rows]), _wide(gate[rows]), _wide(up[rows])
            value, factor = chosen.value(g), chosen.factor(u)
            of_gate, of_up = chosen.gradient(dh * factor, g), chosen.up_gradient(dh * value, u)
            # All three exist before the first is written: outputs may lie over the inputs.
            if product is not None:
                product[rows] = value * factor
            d_gate[rows] = of_gate
            d_up[rows] = of_up


def value(pre: Tensor, act: str, out: Tensor) -> None:
    """out = act(pre), the classic FFN's middle; tensors as in `Backend`."""
    chosen = activation(act)
    for rows in _blocks(pre):
        out[rows] = chosen.value(_wide(pre[rows]))


def gradient(grad: Tensor, pre: Tensor, act: str, d_pre: Tensor, out: Tensor | None) -> None:
    """d_pre from act(pre)'s gradient, and act(pre) itself to `out` where one is given."""
    chosen = activation(act)
    for rows in _blocks(pre):
        dh, p = _wide(grad[rows]), _wide(pre[rows])
        of_pre = chosen.gradient(dh, p)
        if out is not None:
            # The identity's value is its input, which d_pre may lie over; so it goes first, and
            # where it lies over grad the identity's gradient, grad itself, is kept aside.
            of_pre = of_pre.clone() if of_pre is dh else of_pre
            out[rows] = chosen.value(p)
        d_pre[rows] = of_pre


def _blocks(like: Tensor) -> Iterator[slice]:
    rows = max(1, BLOCK // max(1, like.shape[1]))
    for start in range(0, like.shape[0], rows):
        yield slice(start, start + rows)


def _wide(block: Tensor) -> Tensor:
    return block if block.dtype == torch.float64 else block.float()


# In order of preference; plain torch, which serves everywhere, is last.
_BACKENDS: list[Backend] = [NativeBackend(), TritonBackend(), TorchBackend()]
_only: str | None = None


def register(backend: Backend) -> None:
    """Prefer `backend` to those registered before it."""
    _BACKENDS.insert(0, backend)


def choose(act: str, gate: Tensor, out: Tensor) -> Backend:
    """The first backend that can serve; the forced one inside `using`.

    Raises UsageError when the forced backend cannot, with its reason.
    """
    for backend in _BACKENDS:
        if _only is not None and backend.name != _only:
            continue
        reason = backend.why_not(act, gate, out)
        if reason is None:
            return backend
        if _only is not None:
            raise UsageError(f"backend {_only!r} cannot compute {act!r} here: {reason}")
    known = ", ".join(backend.name for backend in _BACKENDS)
    raise UsageError(f"backend {_only!r} is not there", expected=f"one of {known}")


def native_allowed() -> bool:
    """False inside `using` of another backend than the native one."""
    return _only in (None, NativeBackend.name)


@contextlib.contextmanager
def using(name: str) -> Iterator[None]:
    """Force one backend by name: for tests and measurements."""
    global _only
    was, _only = _only, name
    try:
        yield
    finally:
        _only = was
