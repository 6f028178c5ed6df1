"""The KV cache: allocated once for its capacity, touched as it fills.

Letters: B sequences (rows of the cache), K num_kv_heads, C capacity, D head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gateup.engine.config import DecoderConfig, LayerConfig
from gateup.errors import UsageError

# float16 halves what a step reads and is llama.cpp's default; float32 is for comparisons.
DTYPES: Mapping[str, torch.dtype] = {"float16": torch.float16, "float32": torch.float32}


class KVCache:
    """Keys (after rope) and values of B sequences, of their own lengths.

    keys, values  per layer [B, K, C, D]; position p of sequence b at [b, :, p]
    lengths       positions filled, per sequence; a decoder raises them as it writes
    """

    def __init__(
        self,
        config: DecoderConfig,
        capacity: int,
        batch: int = 1,
        dtype: torch.dtype = torch.float16,
    ) -> None:
        """Raises UsageError for a capacity or batch below 1, another dtype, or no memory for it."""
        if capacity < 1 or batch < 1:
            raise UsageError(
                f"a KV cache of {batch} × {capacity} positions", expected="at least 1 × 1"
            )
        if dtype not in DTYPES.values():
            expected = " or ".join(str(d) for d in DTYPES.values())
            raise UsageError(f"a KV cache of {dtype}", expected=expected)
        self.capacity = capacity
        self.batch = batch
        self.dtype = dtype
        self.lengths = [0] * batch
        try:
            # empty, not zeros: pages are taken when positions are written, not before
            self.keys = [torch.empty(self._key_shape(x), dtype=dtype) for x in config.layers]
            self.values = [torch.empty(self._value_shape(x), dtype=dtype) for x in config.layers]
        except RuntimeError as e:  # torch's allocator has no type of its own for this
            raise UsageError(
                f"no memory for a KV cache of {nbytes(config, capacity, batch, dtype):,} bytes",
                remedy="a smaller context (--ctx)",
            ) from e

    def _key_shape(self, layer: LayerConfig) -> tuple[int, ...]:
        return self.batch, layer.num_kv_heads, self.capacity, layer.head_dim

    def _value_shape(self, layer: LayerConfig) -> tuple[int, ...]:
        return self.batch, layer.num_kv_heads, self.capacity, layer.head_dim

    def overflows(self) -> bool:
        """Whether a float16 cache holds an infinity where positions are filled: a value beyond
        65,504 was written."""
        if self.dtype != torch.float16:
            return False
        return any(
            bool(torch.isinf(self._filled(part, row)).any())
            for part in self.keys + self.values
            for row in range(self.batch)
        )

    def _filled(self, part: torch.Tensor, row: int) -> torch.Tensor:
        """What is written of a sequence's keys or values; the rest may be anything."""
        return part[row, :, : self.lengths[row]]

    def room(self, row: int) -> int:
        """Positions that are left in a sequence."""
        return self.capacity - self.lengths[row]

    def truncate(self, row: int, length: int) -> None:
        """Forget all positions of a sequence from `length` on."""
        self.lengths[row] = min(self.lengths[row], max(length, 0))


def nbytes(config: DecoderConfig, capacity: int, batch: int, dtype: torch.dtype) -> int:
    """Bytes of such a cache, once full."""
    return config.kv_elements * capacity * batch * dtype.itemsize
