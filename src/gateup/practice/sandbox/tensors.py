"""Tensors to and from the wire's arrays, in the learner's process, where torch is loaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from . import wire


def given(array: wire.Array) -> torch.Tensor:
    """The array as a tensor of its own memory."""
    tensor = torch.from_numpy(np.array(array.values))
    if array.dtype == "bfloat16":
        tensor = tensor.view(torch.bfloat16)
    return tensor.requires_grad_() if array.requires_grad else tensor


def returned(value: Any, depth: int = 0) -> Any:
    """The same tree with tensors as arrays. WireError for dtypes the wire has not."""
    if depth > wire.DEPTH_LIMIT:
        return value
    if isinstance(value, (tuple, list)):
        return [returned(v, depth + 1) for v in value]
    if isinstance(value, dict):
        return {key: returned(v, depth + 1) for key, v in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    plain = value.detach().cpu().contiguous()
    name = str(plain.dtype).removeprefix("torch.")
    if name not in wire.DTYPES:
        raise wire.WireError(f"a tensor of dtype {name}")
    bits = plain.view(torch.uint16) if name == "bfloat16" else plain
    return wire.Array(bits.numpy(), name, torch=True)
