"""A byte budget against the modules it is to serve, before any of them is changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from gateup.errors import UsageError
from gateup.hf.table import Row
from gateup.ops.arguments import DTYPES
from gateup.ops.options import MLPOptions


def refuse_too_small(chosen: Iterable[tuple[str, nn.Module, Row]], options: MLPOptions) -> None:
    """UsageError where the budget holds not even one token of some module; names the widest.

    Counted in the weights' dtype. Autocast may take less, which is not known beforehand.
    """
    if options.budget is None:
        return
    found = [(name, sizes(module, row)) for name, module, row in chosen]
    known = [(name, *size) for name, size in found if size is not None]
    if not known:
        return
    name, width, itemsize = max(known, key=lambda entry: options.transient(*entry[1:]))
    try:
        options.tile_size(width, itemsize)
    except UsageError as error:
        where = name or "the model itself"
        raise UsageError(error.what, where=where, expected=error.expected) from None


def sizes(module: Any, row: Row) -> tuple[int, int] | None:
    """(I, bytes of an element) as the module would compute; None where it does not tell.

    Weights that are no floating-point numbers of torch's are computed with in 2 bytes or more.
    """
    first = module.gate_proj if row.kind == "split" else module.gate_up_proj
    if row.kind == "experts":
        weight: Any = module.down_proj
        axis = -1 if row.layout.orientation == "out_in" else -2
        width = weight.shape[axis] if isinstance(weight, Tensor) else None
    else:
        weight = getattr(first, "weight", None)
        width = getattr(first, "out_features", None)
    if not isinstance(width, int):
        return None
    dtype = getattr(weight, "dtype", None)
    return width // (2 if row.kind == "fused" else 1), dtype.itemsize if dtype in DTYPES else 2
