"""Packed weights in the order of the C++ kernels: the one place that knows how these are called."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gateup.files.gguf import TYPES
from gateup.ops import native, unpack
from gateup.ops.packed_weight import PackedWeight

NUMBERS = {name: number for number, name in TYPES.items()}


@functools.cache
def _kernels() -> Any:
    try:
        return importlib.import_module("gateup.ops.native_matrix")
    except ImportError:
        return None


def why_not(name: str, device: torch.device) -> str:
    """ "" where the kernels can take weights of the type, otherwise the reason."""
    if device.type != "cpu":
        return f"the C++ kernels run on the CPU, the weights are on {device}"
    kernels = _kernels()
    if kernels is None:
        return "the C++ kernels were built without products"
    return kernels.why_not(NUMBERS[name]) or ""


def pack(name: str, raw: Tensor, n: int, k: int) -> PackedWeight:
    """raw [n, row bytes] in the kernels' order."""
    return PackedWeight(name, n, k, _kernels().pack(NUMBERS[name], raw, n, k), True)


def serves(x: Tensor, *weights: PackedWeight) -> bool:
    """Whether x can go through the kernels with these weights in one call: the dense types and
    the block formats have kernels of their own."""
    kinds = {w.type in unpack.DENSE for w in weights}
    return x.dtype in native.DTYPES and all(w.native for w in weights) and len(kinds) == 1


def linear(
    x: Tensor,
    weights: Sequence[PackedWeight],
    biases: Sequence[Tensor | None],
    dtype: torch.dtype,
) -> list[Tensor]:
    """x [T, k] -> [T, n] of each, in `dtype`."""
    matrices = [_matrix(w, b) for w, b in zip(weights, biases, strict=True)]
    products: list[Tensor] = _kernels().linear(x, matrices, dtype)
    return products


def gated_mlp(x: Tensor, weights: Sequence[PackedWeight], act: str) -> Tensor:
    """x [T, H] -> [T, H_out], in x's dtype."""
    gate, up, down = (_matrix(w, None) for w in weights)
    y: Tensor = _kernels().gated_mlp(x, gate, up, down, act)
    return y


def rows(w: PackedWeight, index: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Rows dequantised: [r, k] of index [r], or all [n, k]."""
    if index is not None and index.numel() and not 0 <= int(index.min()) <= int(index.max()) < w.n:
        raise IndexError(f"rows {int(index.min())} to {int(index.max())} of {w.n}")
    numbers: Tensor = _kernels().unpack(_matrix(w, None), index, dtype)
    return numbers


def _matrix(w: PackedWeight, bias: Tensor | None) -> Any:
    if bias is not None:
        bias = bias.detach().to(torch.float32).contiguous()
    return _kernels().Packed(NUMBERS[w.type], w.data, w.n, w.k, bias)
