"""Products with packed weight matrices by the C++ kernels of csrc/.

A matrix [n, k] of a GGUF type is packed once into the order the kernels stream; packed, it is as
large as in the file to within 3%. One entry serves any number T of rows, and a row's bits depend
neither on T nor on the threads. Types are GGUF's numbers (`gguf.GGMLQuantizationType`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gateup.files.gguf import TYPES
from gateup.model.quant.formats import FORMATS, nbytes
from gateup.ops import native
from gateup.ops.packed_weight import aligned_memory

_Matrix = tuple[int, int, int, int, int]
_Rows = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed matrix and its optional bias.

    type  GGUF's number of the quantisation
    data  uint8, from `pack`
    n, k  rows and columns: y [T, n] = x [T, k] · Wᵀ
    bias  float32 [n], contiguous, or None
    terms 1, or 2: activations as one int8 number or as the sum of two (quantised types alone)
    """

    type: int
    data: Tensor
    n: int
    k: int
    bias: Tensor | None = None
    terms: int = 1


def why_not(type_: int) -> str | None:
    """None when the kernels know the type, otherwise the reason in words."""
    module, why = native.load()
    if module is None:
        return why
    # 256 is a multiple of every format's block.
    if not module.packed_nbytes(int(type_), 1, 256):
        return f"the C++ kernels have no products for weights of GGUF type {int(type_)}"
    return None


def packed_nbytes(type_: int, n: int, k: int) -> int:
    """Bytes of the packed form; 0 where the type is unknown or does not divide k."""
    module, _ = native.load()
    return 0 if module is None else int(module.packed_nbytes(int(type_), n, k))


def pack(type_: int, raw: Tensor, n: int, k: int) -> Tensor:
    """The rows as a file stores them (uint8, contiguous) -> the packed form, uint8 [bytes].

    Raises ValueError where type, n and k do not go together or `raw` has another size.
    """
    size = packed_nbytes(type_, n, k)
    if not size:
        raise ValueError(f"no packed form for [{n}, {k}] of type {int(type_)}")
    wanted = nbytes(FORMATS[TYPES[int(type_)]], k, n)
    if raw.dtype != torch.uint8 or raw.numel() != wanted or not raw.is_contiguous():
        raise ValueError(
            f"[{n}, {k}] of type {int(type_)} is {wanted} contiguous bytes, "
            f"got {raw.numel()} of {raw.dtype}"
        )
    data = _aligned(size)
    args = (int(type_), data.data_ptr(), n, k, 1)
    native.extension().pack(args, raw.data_ptr(), torch.get_num_threads())
    return data


def linear(
    x: Tensor, weights: Sequence[Packed], out_dtype: torch.dtype | None = None
) -> list[Tensor]:
    """x [T, k] · Wᵀ + bias for each matrix: a list of [T, n]; x is quantised once for all.

    x is float32, bfloat16 or float16, and so are the results (`out_dtype`: by default x's).
    """
    x = _rows(x)
    outs = [x.new_empty((x.shape[0], w.n), dtype=out_dtype or x.dtype) for w in weights]
    products = []
    for w, y in zip(weights, outs, strict=True):
        if w.k != x.shape[1]:
            raise ValueError(f"x [T, {x.shape[1]}] does not fit a matrix [{w.n}, {w.k}]")
        products.append((_matrix(w), _bias(w), _view(y)))
    native.extension().linear(products, _view(x), x.shape[0], torch.get_num_threads())
    return outs


def gated_mlp(
    x: Tensor,
    gate: Packed,
    up: Packed,
    down: Packed,
    act: str = "silu",
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """down(act(gate(x)) ⊙ up(x)): x [T, H] -> [T, H_out], gate, up and h never in memory."""
    x = _rows(x)
    if gate.k != x.shape[1]:
        raise ValueError(f"x [T, {x.shape[1]}] does not fit a gate [{gate.n}, {gate.k}]")
    y = x.new_empty((x.shape[0], down.n), dtype=out_dtype or x.dtype)
    native.extension().gated_mlp(
        (_matrix(gate), _matrix(up), _matrix(down)),
        (_bias(gate), _bias(up), _bias(down)),
        native.ACTS.index(act),
        _view(x),
        x.shape[0],
        _view(y),
        torch.get_num_threads(),
    )
    return y


def unpack(w: Packed, rows: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """The weights as numbers, all [n, k] or those of `rows` (int64 [R]) as [R, k].

    Exact in float32 (gguf's own dequantisation bit for bit), rounded to nearest otherwise.
    """
    count = w.n if rows is None else rows.numel()
    out = torch.empty((count, w.k), dtype=dtype)
    if rows is not None:
        rows = rows.to(torch.int64).contiguous()
    address = 0 if rows is None else rows.data_ptr()
    native.extension().unpack(_matrix(w), address, count, _view(out), torch.get_num_threads())
    return out


def _aligned(size: int) -> Tensor:
    memory = aligned_memory(size)
    native.extension().use_huge_pages(memory.data_ptr(), memory.numel())
    return memory


def _rows(x: Tensor) -> Tensor:
    if x.dim() != 2 or x.device.type != "cpu" or x.dtype not in native.DTYPES:
        raise ValueError(
            "x must be [T, k] on the CPU, float32, bfloat16 or float16; "
            f"got {list(x.shape)} {x.dtype} on {x.device}"
        )
    return x if x.stride(1) == 1 or x.shape[1] <= 1 else x.contiguous()


def _matrix(w: Packed) -> _Matrix:
    if w.data.numel() != packed_nbytes(w.type, w.n, w.k):
        raise ValueError(f"{w.data.numel()} bytes are no packed [{w.n}, {w.k}] of type {w.type}")
    return int(w.type), w.data.data_ptr(), w.n, w.k, w.terms


def _bias(w: Packed) -> int:
    if w.bias is None:
        return 0
    if w.bias.dtype != torch.float32 or w.bias.shape != (w.n,) or not w.bias.is_contiguous():
        raise ValueError(f"a bias must be contiguous float32 [{w.n}]")
    return w.bias.data_ptr()


def _view(t: Tensor) -> _Rows:
    return t.data_ptr(), t.stride(0), native.DTYPES[t.dtype]
