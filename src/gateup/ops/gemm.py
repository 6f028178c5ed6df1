"""Matrix products with a float32 result from 16-bit operands, and float32 sums of them.

torch rounds a bf16 product to bf16. Where float32 must come out, CUDA has `out_dtype`, and on x86
CPUs torch's library carries MKL, whose cblas_gemm_bf16bf16f32 and cblas_gemm_f16f16f32 we call by
their C names. Elsewhere the operands are upcast, a block of columns at a time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from gateup.ops import dense
from gateup.ops.rows import spans

_MKL_NAMES = {torch.bfloat16: "cblas_gemm_bf16bf16f32", torch.float16: "cblas_gemm_f16f16f32"}
_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112
# Columns of the second operand upcast at a time where no mixed kernel exists: 1024 columns of
# width 4096 are 16 MiB in float32.
_UPCAST_COLUMNS = 1024


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums are kept in: float32, and float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def gemm(a: Tensor, b: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
    """out (+)= a @ b. a [M, K], b [K, N], any strides; out [M, N] with contiguous rows.

    `out` is of the operands' dtype, or float32 with 16-bit operands.
    """
    if out.dtype == a.dtype:
        if accumulate:
            torch.addmm(out, a, b, out=out)
        else:
            torch.mm(a, b, out=out)
    elif a.is_cuda and _has_out_dtype():
        product = torch.mm(a, b, out_dtype=out.dtype)
        if accumulate:
            out.add_(product)
        else:
            out.copy_(product)
    else:
        mixed = _mkl(a.dtype) if a.device.type == "cpu" and out.dtype == torch.float32 else None
        (mixed or _upcast)(a, b, out, accumulate)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """out = x weightᵀ + bias. x [T, K]; weight [N, K]; bias [N]; out [T, N] as in `gemm`."""
    if out.dtype != x.dtype and dense.serves(weight):
        dense.linear(x, weight, bias, out)
    elif bias is None:
        gemm(x, weight.t(), out)
    elif out.dtype == x.dtype:
        torch.addmm(bias, x, weight.t(), out=out)
    else:
        out.copy_(bias)
        gemm(x, weight.t(), out, accumulate=True)


def _upcast(a: Tensor, b: Tensor, out: Tensor, accumulate: bool) -> None:
    wide = a.to(out.dtype)
    for columns in spans(b.shape[1], _UPCAST_COLUMNS):
        product = wide @ b[:, columns].to(out.dtype)
        if accumulate:
            out[:, columns] += product
        else:
            out[:, columns] = product


@cache
def _has_out_dtype() -> bool:
    """torch.mm(..., out_dtype=...) came with torch 2.8."""
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (2, 8)


Mixed = Callable[[Tensor, Tensor, Tensor, bool], None]


@cache
def _mkl(dtype: torch.dtype) -> Mixed | None:
    """MKL's product of 16-bit matrices into float32; None where torch has no MKL inside."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if not library.exists():
        return None
    function = getattr(ctypes.CDLL(str(library)), _MKL_NAMES[dtype], None)
    if function is None:
        return None
    function.restype = None
    integer, real, pointer = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
    function.argtypes = [integer] * 6 + [real, pointer, integer, pointer, integer]
    function.argtypes += [real, pointer, integer]

    def mixed(a: Tensor, b: Tensor, out: Tensor, accumulate: bool) -> None:
        a, flip_a, lda = _operand(a)
        b, flip_b, ldb = _operand(b)
        (m, k), n = a.shape, b.shape[1]
        beta = 1.0 if accumulate else 0.0
        function(
            *(_ROW_MAJOR, flip_a, flip_b, m, n, k),
            *(1.0, a.data_ptr(), lda, b.data_ptr(), ldb),
            *(beta, out.data_ptr(), max(out.stride(0), n)),
        )

    return mixed if _agrees(mixed, dtype) else None


def _agrees(mixed: Mixed, dtype: torch.dtype) -> bool:
    """Small whole numbers, which every format holds exactly: guards against another calling
    convention under the same name."""
    a = torch.arange(12, dtype=dtype).view(3, 4)
    b = torch.arange(8, dtype=dtype).view(2, 4)
    out = torch.ones(3, 2)
    mixed(a, b.t(), out, True)
    return torch.equal(out, a.float() @ b.float().t() + 1)


def _operand(matrix: Tensor) -> tuple[Tensor, int, int]:
    """(matrix, transposed?, leading dimension) as BLAS wants it; a copy where strides do not fit.

    BLAS asks for a leading dimension of at least the row's length, even of a single row.
    """
    rows, columns = matrix.shape
    if rows > 1 and columns > 1:
        if matrix.stride(1) == 1 and matrix.stride(0) >= columns:
            return matrix, _PLAIN, matrix.stride(0)
        if matrix.stride(0) == 1 and matrix.stride(1) >= rows:
            return matrix, _TRANSPOSED, matrix.stride(1)
    return matrix.contiguous(), _PLAIN, max(columns, 1)
