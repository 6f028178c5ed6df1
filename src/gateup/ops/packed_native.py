"""Packed weights in the order of the C++ kernels: the one place that knows how these are called."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gateup.files.gguf import TYPES
from gateup.ops import native, native_matrix, unpack
from gateup.ops.packed_weight import PackedWeight

NUMBERS = {name: number for number, name in TYPES.items()}


def why_not(name: str, device: torch.device) -> str:
    """ "" where the kernels can take weights of the type, otherwise the reason."""
    if device.type != "cpu":
        return f"the C++ kernels run on the CPU, the weights are on {device}"
    return native_matrix.why_not(NUMBERS[name]) or ""


def pack(name: str, raw: Tensor, n: int, k: int) -> PackedWeight:
    """raw [n, row bytes] in the kernels' order."""
    return PackedWeight(name, n, k, native_matrix.pack(NUMBERS[name], raw, n, k), True)


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
    return native_matrix.linear(x, matrices, dtype)


def gated_mlp(x: Tensor, weights: Sequence[PackedWeight], act: str) -> Tensor:
    """x [T, H] -> [T, H_out], in x's dtype."""
    gate, up, down = (_matrix(w, None) for w in weights)
    return native_matrix.gated_mlp(x, gate, up, down, act)


def rows(w: PackedWeight, index: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Rows dequantised: [r, k] of index [r], or all [n, k]."""
    return native_matrix.unpack(_matrix(w, None), index, dtype)


def _matrix(w: PackedWeight, bias: Tensor | None) -> native_matrix.Packed:
    if bias is not None:
        bias = bias.detach().to(torch.float32).contiguous()
    return native_matrix.Packed(NUMBERS[w.type], w.data, w.n, w.k, bias)
