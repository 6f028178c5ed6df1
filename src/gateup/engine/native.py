"""The decoder in C++: a whole forward pass is one call (csrc/decoder.cpp).

Python would cost more than a small model's arithmetic: at 30 layers and some ten operators each,
a token of SmolLM2-135M takes torch 1.5 ms of dispatch a layer. The same mathematics as
`model.TorchDecoder`, on the same packed weights by the same kernels for products; what is between
them differs by float32 rounding.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from gateup.engine.cache import KVCache
from gateup.engine.config import DecoderConfig, LayerConfig, RopeConfig
from gateup.engine.model import checked
from gateup.engine.weights import LayerWeights, MLPWeights, MoEWeights, Weights
from gateup.errors import UsageError
from gateup.ops import native
from gateup.ops.packed import PackedWeight
from gateup.ops.packed_native import NUMBERS

# Tokens of one call: activations stay in the caches, and Ctrl-C is heard between two calls.
CHUNK = 512
# Keys that lie side by side in the cache, and the step of head_dim (kPanel of csrc/attention.hpp).
PANEL = 16


class NativeCache(KVCache):
    """A KV cache in the C++ decoder's order; C and D rounded up to whole panels.

    keys    per layer [B, K, C / 16, D, 16]: a vector holds one number of 16 keys
    values  per layer [B, K, C, D]
    """

    def _key_shape(self, layer: LayerConfig) -> tuple[int, ...]:
        dim = _rounded(layer.head_dim)
        return self.batch, layer.num_kv_heads, _rounded(self.capacity) // PANEL, dim, PANEL

    def _value_shape(self, layer: LayerConfig) -> tuple[int, ...]:
        return self.batch, layer.num_kv_heads, _rounded(self.capacity), _rounded(layer.head_dim)

    def _filled(self, part: torch.Tensor, row: int) -> torch.Tensor:
        one = part[row]
        if part.ndim == 5:  # keys
            one = one.transpose(-1, -2).flatten(1, 2)
        return one[:, : self.lengths[row]]

    def handle(self, module: ModuleType) -> Any:
        """The addresses, for the decoder."""
        if not hasattr(self, "_handle"):
            layers = [
                (k.data_ptr(), v.data_ptr(), k[0].numel() * k.element_size())
                for k, v in zip(self.keys, self.values, strict=True)
            ]
            dtype = native.DTYPES[self.dtype]
            capacity = _rounded(self.capacity)
            self._handle = module.DecoderCache(layers, capacity, self.batch, dtype)
        return self._handle


def why_not(config: DecoderConfig, weights: Weights) -> str | None:
    """None where the C++ decoder can run the model, otherwise the reason in words."""
    status = native.status()
    if not status.available:
        return status.text
    for name, w in _matrices(weights):
        if not w.native:
            return f"{name} is held as it is in the file ({w.type}), not in the kernels' order"
    acts = {layer.act for layer in config.layers}
    for act in acts:
        if act not in native.ACTS:
            return f"the C++ kernels have no {act!r}"
    return None


class NativeDecoder:
    """Logits for new positions of sequences whose keys and values are in a NativeCache."""

    name = "native"

    def __init__(self, config: DecoderConfig, weights: Weights) -> None:
        """Raises UsageError where `why_not` has a reason."""
        reason = why_not(config, weights)
        if reason is not None:
            raise UsageError(f"the C++ decoder cannot run this model: {reason}")
        self.config = config
        self.weights = weights
        self._module = native.extension()
        self._kept: list[torch.Tensor] = []  # vectors that had to be copied
        self._lock = threading.Lock()  # activations of a pass lie in the decoder
        self._decoder = self._module.Decoder(self._parts())

    def new_cache(
        self, capacity: int, batch: int = 1, dtype: torch.dtype = torch.float16
    ) -> NativeCache:
        """A cache for `batch` sequences of up to `capacity` positions; raises as KVCache."""
        return NativeCache(self.config, capacity, batch, dtype)

    @torch.inference_mode()
    def forward(
        self,
        ids: torch.Tensor,
        cache: KVCache,
        rows: Sequence[int] | None = None,
        *,
        every: bool = False,
    ) -> torch.Tensor:
        """Float32 logits of the last new position [B, V], or of each [B, T, V] where `every`.

        ids    [B, T] token numbers that follow what the cache holds; [T] is a batch of one
        cache  of `new_cache`; written, and its lengths raised by T
        rows   the cache's sequence that each of the B is; the first B where not given

        Raises UsageError where a token is outside the vocabulary or the cache has no room.
        """
        assert isinstance(cache, NativeCache)
        ids = ids[None] if ids.ndim == 1 else ids
        rows = range(ids.shape[0]) if rows is None else rows
        checked(ids, cache, rows, self.config.vocab_size)
        B, T = ids.shape
        V = self.config.vocab_size
        logits = torch.empty(B, T, V) if every else torch.empty(B, V)
        step = max(1, CHUNK // B)
        for first in range(0, T, step):
            part = ids[:, first : first + step].to(torch.int64).contiguous()
            if every:
                logits[:, first : first + step] = self._chunk(part, cache, rows, every=True)
            elif first + step < T:
                self._call(part, cache, rows, [], None)
            else:
                last = [(b + 1) * part.shape[1] - 1 for b in range(B)]
                self._call(part, cache, rows, last, logits)
        return logits

    def seconds(self) -> dict[str, float]:
        """Time spent so far, by part of the pass."""
        return dict(self._decoder.seconds())

    def _chunk(
        self, ids: torch.Tensor, cache: NativeCache, rows: Sequence[int], *, every: bool
    ) -> torch.Tensor:
        """Logits of all of ids [B, T] → [B, T, V]."""
        logits = torch.empty(*ids.shape, self.config.vocab_size)
        self._call(ids, cache, rows, list(range(ids.numel())), logits)
        return logits

    def _call(
        self,
        ids: torch.Tensor,
        cache: NativeCache,
        rows: Sequence[int],
        wanted: list[int],
        logits: torch.Tensor | None,
    ) -> None:
        T = ids.shape[1]
        spans = [(r, T, cache.lengths[r]) for r in rows]
        address = 0 if logits is None else logits.data_ptr()
        handle = cache.handle(self._module)
        threads = torch.get_num_threads()
        with self._lock:
            self._decoder.forward(handle, ids.data_ptr(), 0, spans, wanted, address, threads)
        for r in rows:
            cache.lengths[r] += T

    # ---- the description ------------------------------------------------------------------------

    def _parts(self) -> dict[str, Any]:
        config, weights = self.config, self.weights
        ropes = list(dict.fromkeys(x.rope for x in config.layers if x.rope is not None))
        layers = zip(config.layers, weights.layers, strict=True)
        return {
            "hidden_size": config.hidden_size,
            "vocab_size": config.vocab_size,
            "norm_eps": config.norm_eps,
            "embedding_scale": config.embedding_scale,
            "residual_scale": config.residual_scale,
            "logit_scale": config.logit_scale,
            "logit_softcap": config.logit_softcap or 0.0,
            "embed": _matrix(weights.embed),
            "head": _matrix(weights.head),
            "norm": self._vector(weights.norm),
            "ropes": [(list(r.inv_freq), r.scale) for r in ropes],
            "layers": [self._layer(x, w, ropes) for x, w in layers],
        }

    def _layer(self, x: LayerConfig, w: LayerWeights, ropes: list[RopeConfig]) -> dict[str, Any]:
        out: dict[str, Any] = {
            "heads": x.num_heads,
            "kv_heads": x.num_kv_heads,
            "head_dim": x.head_dim,
            "scale": x.scale,
            "softcap": x.softcap or 0.0,
            "window": x.window or 0,
            "rope": -1 if x.rope is None else ropes.index(x.rope),
        }
        out |= {name: _matrix(getattr(w, name)) for name in ("q", "k", "v", "o")}
        out |= {name: self._vector(getattr(w, name)) for name in _VECTORS}
        if isinstance(w.mlp, MLPWeights):
            return out | {"mlp": self._mlp(x, w.mlp)}
        assert x.moe is not None
        return out | {
            "router": self._vector(w.mlp.router),
            "top_k": x.moe.top_k,
            "normalise": x.moe.normalise,
            "experts": [self._mlp(x, e) for e in w.mlp.experts],
        }

    def _mlp(self, x: LayerConfig, w: MLPWeights) -> dict[str, Any]:
        out: dict[str, Any] = {name: _matrix(getattr(w, name)) for name in _MLP_MATRICES}
        biases = {f"{name}_bias": self._vector(getattr(w, f"{name}_bias")) for name in out}
        return out | biases | {"act": native.ACTS.index(x.act)}

    def _vector(self, vector: torch.Tensor | None) -> int:
        """Address of its float32 numbers, 0 for none."""
        if vector is None:
            return 0
        kept = vector.detach().to(torch.float32).contiguous()
        self._kept.append(kept)
        return kept.data_ptr()


_VECTORS = (
    *("q_bias", "k_bias", "v_bias", "o_bias", "q_norm", "k_norm", "input_norm"),
    *("attention_post_norm", "mlp_norm", "mlp_post_norm"),
)
_MLP_MATRICES = ("gate", "up", "down")


def _rounded(n: int) -> int:
    return -(-n // PANEL) * PANEL


def _matrix(w: PackedWeight) -> tuple[int, int, int, int, int]:
    """(type, address, n, k, terms)"""
    return NUMBERS[w.type], w.data.data_ptr(), w.n, w.k, w.terms


def _matrices(weights: Weights) -> list[tuple[str, PackedWeight]]:
    """All of them, each with its name."""
    out = [("embed", weights.embed), ("head", weights.head)]
    for i, layer in enumerate(weights.layers):
        out += [(f"layers[{i}].{name}", getattr(layer, name)) for name in ("q", "k", "v", "o")]
        mlp = layer.mlp
        experts = mlp.experts if isinstance(mlp, MoEWeights) else (mlp,)
        out += [
            (f"layers[{i}].{name}", getattr(expert, name))
            for expert in experts
            for name in _MLP_MATRICES
        ]
    return out
