"""Rows of block formats back to numbers, in plain torch, with the bits of the `gguf` package.

The common formats are taken apart here (on any device); the rest by `gguf`'s numpy code.
Formats [source]: ggml's block structs; sizes are those of `gateup.model.quant.formats`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gateup.model.quant.formats import FORMATS

# Types whose elements are torch's own.
DENSE: Mapping[str, torch.dtype] = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f64": torch.float64,
}
# What gguf's dequantiser knows beyond those below.
_BY_GGUF = frozenset(
    {"q2_k", "q3_k", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"}
    | {"tq1_0", "tq2_0", "mxfp4", "nvfp4"}
)
# Values of IQ4_NL's 16 codes.
_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def known(type_: str) -> bool:
    """Whether rows of the type can be read."""
    return type_ in DENSE or type_ in _BLOCKS or type_ in _BY_GGUF


def dense(type_: str, raw: Tensor) -> Tensor | None:
    """raw [n, row bytes] viewed as [n, k] of the type's own dtype; None for block formats."""
    dtype = DENSE.get(type_)
    return None if dtype is None else raw.view(dtype)


def unpack(type_: str, raw: Tensor) -> Tensor:
    """raw [n, row bytes] uint8 -> [n, k] float32 (float64 for f64), exactly what is stored."""
    values = dense(type_, raw)
    if values is not None:
        return values if type_ == "f64" else values.to(torch.float32)
    fmt = FORMATS[type_]
    rows, nbytes = raw.shape
    read = _BLOCKS.get(type_)
    if read is None:
        return _by_gguf(type_, raw)
    blocks = read(raw.reshape(-1, fmt.block_bytes))
    return blocks.reshape(rows, nbytes // fmt.block_bytes * fmt.block_size)


def _by_gguf(type_: str, raw: Tensor) -> Tensor:
    import gguf  # 0.1 s; only models in rare formats pay it
    from gguf.quants import dequantize

    kind = gguf.GGMLQuantizationType[type_.upper()]
    numbers: Any = dequantize(raw.cpu().numpy(), kind)
    return torch.from_numpy(numbers).to(raw.device)


def _half(blocks: Tensor, start: int) -> Tensor:
    """The f16 at byte `start` of each block, [b, 1] float32."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).to(torch.float32)


def _nibbles(packed: Tensor) -> Tensor:
    """[b, 16] -> [b, 32]: all low halves, then all high ones."""
    return torch.cat((packed & 15, packed >> 4), dim=1)


def _fifth_bits(packed: Tensor) -> Tensor:
    """4 bytes, bit j for element j -> [b, 32], each 0 or 16."""
    shift = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (((packed[:, :, None] >> shift) & 1) << 4).flatten(1)


def _q4_0(b: Tensor) -> Tensor:
    return _half(b, 0) * (_nibbles(b[:, 2:]).to(torch.int8) - 8)


def _q4_1(b: Tensor) -> Tensor:
    return _half(b, 0) * _nibbles(b[:, 4:]) + _half(b, 2)


def _q5_0(b: Tensor) -> Tensor:
    codes = _nibbles(b[:, 6:]) | _fifth_bits(b[:, 2:6])
    return _half(b, 0) * (codes.to(torch.int8) - 16)


def _q5_1(b: Tensor) -> Tensor:
    codes = _nibbles(b[:, 8:]) | _fifth_bits(b[:, 4:8])
    return _half(b, 0) * codes + _half(b, 2)


def _q8_0(b: Tensor) -> Tensor:
    return _half(b, 0) * b[:, 2:].view(torch.int8)


def _iq4_nl(b: Tensor) -> Tensor:
    table = torch.tensor(_IQ4_NL, dtype=torch.float32, device=b.device)
    return _half(b, 0) * table[_nibbles(b[:, 2:]).to(torch.int32)]


def _k_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """12 bytes -> eight 6-bit scales and eight minima, [b, 8] each."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((first & 63, (third & 15) | ((first >> 6) << 4)), dim=1)
    minima = torch.cat((second & 63, (third >> 4) | ((second >> 6) << 4)), dim=1)
    return scales, minima


def _k_affine(b: Tensor, codes: Tensor) -> Tensor:
    """codes [b, 8, 32] of Q4_K or Q5_K: d·scale·code - dmin·minimum."""
    scales, minima = _k_scales(b[:, 4:16])
    scale, offset = _half(b, 0) * scales, _half(b, 2) * minima
    return (scale[:, :, None] * codes - offset[:, :, None]).flatten(1)


def _k_nibbles(packed: Tensor) -> Tensor:
    """128 bytes -> [b, 8, 32]: each 32 bytes hold two sub-blocks, the first in the low halves."""
    quarters = packed.reshape(-1, 4, 1, 32)
    return torch.cat((quarters & 15, quarters >> 4), dim=2).view(-1, 8, 32)


def _q4_k(b: Tensor) -> Tensor:
    return _k_affine(b, _k_nibbles(b[:, 16:]))


def _q5_k(b: Tensor) -> Tensor:
    shift = torch.arange(8, dtype=torch.uint8, device=b.device)[:, None]
    high = ((b[:, 16:48][:, None] >> shift) & 1) << 4
    return _k_affine(b, _k_nibbles(b[:, 48:]) | high)


def _q6_k(b: Tensor) -> Tensor:
    low, high = b[:, :128].reshape(-1, 2, 2, 32), b[:, 128:192].reshape(-1, 2, 1, 32)
    # Of each half of 128: low nibbles of 64 bytes, then their high ones; 2 bits more from `high`.
    nibbles = torch.cat((low & 15, low >> 4), dim=2)
    shift = torch.arange(0, 8, 2, dtype=torch.uint8, device=b.device)[:, None]
    codes = (nibbles | (((high >> shift) & 3) << 4)).to(torch.int8) - 32
    scales = _half(b, 208) * b[:, 192:208].view(torch.int8)
    return (scales[:, :, None] * codes.view(-1, 16, 16)).flatten(1)


# [b, block bytes] -> [b, block size] float32
_BLOCKS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "iq4_nl": _iq4_nl,
}
