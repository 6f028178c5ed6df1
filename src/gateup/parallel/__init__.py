"""One MLP over several processes: torch.distributed's meshes and DTensors around gateup's ops."""

from __future__ import annotations

from gateup.parallel.tensor import (
    full_state_dict,
    load_full_state_dict,
    tensor_parallel,
)

__all__ = ["full_state_dict", "load_full_state_dict", "tensor_parallel"]
