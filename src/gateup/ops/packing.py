"""From the bytes of a file to a weight matrix, repacked for the C++ kernels or as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gateup.errors import UsageError
from gateup.model.quant.formats import FORMATS, format_of, row_nbytes
from gateup.ops import packed_native, unpack
from gateup.ops.packed_weight import PackedWeight

Raw = Tensor | np.ndarray[Any, Any]

# Types met so far that are dequantised at use, and why: see `status`.
_dequantised: dict[str, str] = {}


def pack(type_: str, raw: Raw, n: int, k: int, *, native: bool | None = None) -> PackedWeight:
    """The matrix [n, k] whose rows' bytes, as a file stores them, are `raw` (any uint8 shape).

    native  True: repacked for the C++ kernels; False: `raw` itself is kept, uncopied where its
            memory allows; None: repacked where the kernels know the type

    Raises UsageError for a type that cannot be read, a row of k that is not whole blocks, bytes
    that are not n rows, and native=True without kernels for it.
    """
    name = _checked_type(type_, k)
    data = _bytes(raw)
    expected = n * row_nbytes(FORMATS[name], k)
    if n < 1 or data.numel() != expected:
        raise UsageError(
            f"a {name} matrix of shape [{n:,}, {k:,}] came with {data.numel():,} bytes",
            expected=f"{expected:,} bytes" if n > 0 else "1 row or more",
        )
    reason = packed_native.why_not(name, data.device)
    if native and reason:
        raise UsageError(f"no kernel for {name} weights: {reason}", remedy="leave native to None")
    if native is not False and not reason:
        return packed_native.pack(name, data, n, k)
    if native is None and name not in unpack.DENSE:
        _dequantised[name] = reason
    return PackedWeight(name, n, k, _aligned(name, data.view(n, -1)))


def nbytes(w: PackedWeight) -> int:
    """Bytes of memory that the matrix occupies (of the file's mapping where it is mapped)."""
    return w.data.numel()


def status() -> str:
    """In words: how the products run, and which types met so far are dequantised at use."""
    lines = [f"{name}: dequantised at use, {why}" for name, why in sorted(_dequantised.items())]
    return "\n".join(lines) or "every type met so far has its kernel"


def _checked_type(type_: str, k: int) -> str:
    fmt = format_of(type_)
    if not unpack.known(fmt.name):
        raise UsageError(
            f"weights of type {fmt.name} cannot be read",
            expected="f32, f16, bf16 or a block format that the gguf package dequantises",
            remedy="convert the model to one of the usual types, such as Q4_K_M or Q8_0",
        )
    if k < 1 or k % fmt.block_size:
        raise UsageError(
            f"a row of {k:,} is not whole blocks of {fmt.name}",
            expected=f"a multiple of {fmt.block_size}",
        )
    return fmt.name


def _bytes(raw: Raw) -> Tensor:
    """`raw` as a uint8 tensor over the same memory; copied where it could not be shared."""
    if isinstance(raw, np.ndarray):
        if raw.dtype != np.uint8:
            raise UsageError(f"the bytes are of type {raw.dtype}", expected="uint8")
        return torch.from_numpy(_writable(np.ascontiguousarray(raw)))
    if raw.dtype != torch.uint8:
        raise UsageError(f"the bytes are of type {raw.dtype}", expected="torch.uint8")
    return raw.contiguous()


def _writable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """torch has no read-only tensors. Views of a private mapping are read-only for people, but
    their memory may be written (a copy on write), so that lock can be opened; others are copied.
    """
    if array.flags.writeable:
        return array
    view = array.view()
    try:
        view.flags.writeable = True
    except ValueError:
        return array.copy()
    return view


def _aligned(name: str, data: Tensor) -> Tensor:
    """Elements of torch's own types must lie at multiples of their size."""
    dtype = unpack.DENSE.get(name)
    if dtype is not None and data.data_ptr() % dtype.itemsize:
        return data.clone()
    return data
