"""Which decoder runs: one place that knows them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from gateup.engine import native
from gateup.engine.cache import KVCache
from gateup.engine.config import DecoderConfig
from gateup.engine.model import TorchDecoder
from gateup.engine.weights import Weights

# Tokens of a prompt that go through the layers together: enough to reuse each weight, and few
# enough that activations of a wide model stay under 200 MB (512 · 3 · 28,672 · 4 bytes).
CHUNK = 512


class Decoder(Protocol):
    """What generation needs of a decoder; see TorchDecoder.forward."""

    name: str
    config: DecoderConfig
    weights: Weights

    def new_cache(
        self, capacity: int, batch: int = 1, dtype: torch.dtype = torch.float16
    ) -> KVCache: ...

    def forward(
        self,
        ids: torch.Tensor,
        cache: KVCache,
        rows: Sequence[int] | None = None,
        *,
        every: bool = False,
    ) -> torch.Tensor: ...


def make_decoder(config: DecoderConfig, weights: Weights) -> Decoder:
    """The fastest decoder that can run the model here."""
    if native.why_not(config, weights) is None:
        return native.NativeDecoder(config, weights)
    return TorchDecoder(config, weights)


def prefill(
    decoder: Decoder, ids: Sequence[int], cache: KVCache, row: int = 0, chunk: int = CHUNK
) -> torch.Tensor:
    """Put a text's tokens into the cache, `chunk` at a time; logits [V] after the last."""
    if not ids:
        raise ValueError("no tokens")
    for start in range(0, len(ids), chunk):
        part = torch.tensor(ids[start : start + chunk])
        logits = decoder.forward(part[None], cache, [row])
    return logits[0]
