"""The decoder in plain torch over packed weights: the reference, and what runs without the kernels.

Activations are float32. Shape letters: B sequences, T new positions of each, S keys in sight,
N = B·T tokens, H hidden_size, A query heads, K key heads, G = A / K, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from gateup.engine.cache import KVCache
from gateup.engine.config import DecoderConfig, LayerConfig, MoEConfig, RopeConfig
from gateup.engine.weights import LayerWeights, MLPWeights, MoEWeights, Weights
from gateup.errors import UsageError
from gateup.ops.act_and_mul import act_and_mul_split
from gateup.ops.packed import dequantise, gated_mlp, linear, linears

# Elements of a score matrix [G, T, S] held at once where scores need a cap (67 MB).
MAX_SCORES = 1 << 24

Turns = dict[RopeConfig, tuple[torch.Tensor, torch.Tensor]]


class TorchDecoder:
    """Logits for new positions of sequences whose keys and values are in a cache."""

    name = "torch"

    def __init__(self, config: DecoderConfig, weights: Weights) -> None:
        self.config = config
        self.weights = weights

    def new_cache(
        self, capacity: int, batch: int = 1, dtype: torch.dtype = torch.float16
    ) -> KVCache:
        """A cache for `batch` sequences of up to `capacity` positions; raises as KVCache."""
        return KVCache(self.config, capacity, batch, dtype)

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

        ids   [B, T] token numbers that follow what the cache holds; [T] is a batch of one
        rows  the cache's sequence that each of the B is; the first B where not given

        The cache is written and its lengths raised by T. Raises UsageError where a token is
        outside the vocabulary or the cache has no room.
        """
        ids = ids[None] if ids.ndim == 1 else ids
        rows = range(ids.shape[0]) if rows is None else rows
        checked(ids, cache, rows, self.config.vocab_size)
        B, T = ids.shape
        past = [cache.lengths[r] for r in rows]
        starts = torch.tensor(past)
        positions = starts[:, None] + torch.arange(T)  # [B, T]
        turns = _turns(self.config, positions)
        x = dequantise(self.weights.embed, ids.reshape(-1))  # [N, H]
        if self.config.embedding_scale != 1.0:
            x = x * self.config.embedding_scale
        for i, (layer, w) in enumerate(zip(self.config.layers, self.weights.layers, strict=True)):
            attention = _Attention(layer, w, self.config.norm_eps)
            a = attention(x, (cache.keys[i], cache.values[i]), rows, past, turns)
            x = self._add(x, a, w.attention_post_norm)
            h = rms_norm(x, w.mlp_norm, self.config.norm_eps)
            x = self._add(x, self._mlp(i, h, w.mlp), w.mlp_post_norm)
        for r in rows:
            cache.lengths[r] += T
        x = x if every else x.view(B, T, -1)[:, -1]
        logits = self._head(x)
        return logits.view(B, T, -1) if every else logits

    def _mlp(self, i: int, x: torch.Tensor, w: MLPWeights | MoEWeights) -> torch.Tensor:
        """Layer i's MLP, [N, H] → [N, H]."""
        return _mlp(x, self.config.layers[i], w)

    def _add(
        self, x: torch.Tensor, branch: torch.Tensor, norm: torch.Tensor | None
    ) -> torch.Tensor:
        """x + scale · norm(branch)."""
        if norm is not None:
            branch = rms_norm(branch, norm, self.config.norm_eps)
        return torch.add(x, branch, alpha=self.config.residual_scale)

    def _head(self, x: torch.Tensor) -> torch.Tensor:
        """[M, H] → [M, V]."""
        logits = linear(rms_norm(x, self.weights.norm, self.config.norm_eps), self.weights.head)
        if self.config.logit_scale != 1.0:
            logits = logits * self.config.logit_scale
        if self.config.logit_softcap is not None:
            logits = softcapped(logits, self.config.logit_softcap)
        return logits


def checked(ids: torch.Tensor, cache: KVCache, rows: Sequence[int], vocab: int) -> None:
    """Raise UsageError where the tokens or the cache do not fit the call."""
    B, T = ids.shape
    if len(rows) != B or len(set(rows)) != B or not all(0 <= r < cache.batch for r in rows):
        raise UsageError(
            f"{B} sequences for rows {list(rows)} of a cache of {cache.batch}",
            expected="a row of its own for each",
        )
    if T < 1:
        raise UsageError("no tokens were given", expected="at least one")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab:
        raise UsageError(
            f"token {low if low < 0 else high} is outside the model's vocabulary of {vocab:,}",
            remedy="the tokenizer belongs to another model",
        )
    for r in rows:
        if cache.room(r) < T:
            raise UsageError(
                f"{cache.lengths[r] + T:,} tokens do not fit into a context of {cache.capacity:,}",
                remedy="a larger context (--ctx), or a shorter text",
            )


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / √(mean x² + eps) · weight over the last axis."""
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def softcapped(x: torch.Tensor, cap: float) -> torch.Tensor:
    return torch.tanh(x / cap) * cap


def _turns(config: DecoderConfig, positions: torch.Tensor) -> Turns:
    """Cosine and sine [B, T, 1, pairs] of each rope that the layers use."""
    out: Turns = {}
    for rope in {x.rope for x in config.layers if x.rope is not None}:
        angle = positions[..., None, None].float() * torch.tensor(rope.inv_freq)
        out[rope] = (angle.cos() * rope.scale, angle.sin() * rope.scale)
    return out


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Heads [B, T, heads, D] with their first 2·pairs numbers turned, pair (j, j + pairs)."""
    pairs = cos.shape[-1]
    a, b = x[..., :pairs], x[..., pairs : 2 * pairs]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, x[..., 2 * pairs :]), -1)


class _Attention:
    """Attention of one layer over the cache: norm, q k v, rope, scores, o."""

    def __init__(self, layer: LayerConfig, w: LayerWeights, eps: float) -> None:
        self.layer = layer
        self.w = w
        self.eps = eps

    def __call__(
        self,
        x: torch.Tensor,
        store: tuple[torch.Tensor, torch.Tensor],
        rows: Sequence[int],
        past: Sequence[int],
        turns: Turns,
    ) -> torch.Tensor:
        """x [N, H] → [N, H]; `store` keys and values [rows, K, C, D], written at `past`."""
        layer, w = self.layer, self.w
        B = len(rows)
        T = x.shape[0] // B
        h = rms_norm(x, w.input_norm, self.eps)
        q, k, v = linears(h, [w.q, w.k, w.v], [w.q_bias, w.k_bias, w.v_bias])
        q = q.view(B, T, layer.num_heads, layer.head_dim)
        k = k.view(B, T, layer.num_kv_heads, layer.head_dim)
        v = v.view(B, T, layer.num_kv_heads, layer.head_dim)
        if w.q_norm is not None and w.k_norm is not None:
            q, k = rms_norm(q, w.q_norm, self.eps), rms_norm(k, w.k_norm, self.eps)
        if layer.rope is not None:
            cos, sin = turns[layer.rope]
            q, k = turned(q, cos, sin), turned(k, cos, sin)
        out = torch.empty(B, T, layer.num_heads, layer.head_dim)
        for b, (row, start) in enumerate(zip(rows, past, strict=True)):
            keys, values = store[0][row], store[1][row]
            keys[:, start : start + T] = k[b].transpose(0, 1)
            values[:, start : start + T] = v[b].transpose(0, 1)
            out[b] = self._one(q[b], keys, values, start).transpose(0, 1)
        return linear(out.view(B * T, -1), w.o, w.o_bias)

    def _one(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int
    ) -> torch.Tensor:
        """One sequence: q [T, A, D] at positions from `start` on, keys [K, C, D] → [A, T, D]."""
        layer = self.layer
        T = q.shape[0]
        end = start + T
        first = 0 if layer.window is None else max(0, start - layer.window + 1)
        seen, read = keys[:, first:end].float(), values[:, first:end].float()
        mask = _mask(T, start, first, end, layer.window)
        heads = q.transpose(0, 1)  # [A, T, D]
        if layer.softcap is not None:
            return self._capped(heads, seen, read, mask)
        group = layer.num_heads // layer.num_kv_heads
        if T == 1:  # the G heads of a key head as G rows of one product
            q = heads.reshape(layer.num_kv_heads, group, -1)
            scores = torch.bmm(q, seen.transpose(1, 2)) * layer.scale
            return torch.bmm(scores.softmax(-1), read).view(layer.num_heads, 1, -1)
        return F.scaled_dot_product_attention(
            heads[None],
            seen.repeat_interleave(group, 0)[None],
            read.repeat_interleave(group, 0)[None],
            attn_mask=mask,
            scale=layer.scale,
        )[0]

    def _capped(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attention with softcap, a few queries at a time: [A, T, D]."""
        layer = self.layer
        assert layer.softcap is not None
        A, T, D = q.shape
        K, S = keys.shape[:2]
        grouped = q.view(K, A // K, T, D)
        out = torch.empty_like(grouped)
        step = max(1, MAX_SCORES // (A * S))
        for t in range(0, T, step):
            scores = grouped[:, :, t : t + step] @ keys[:, None].transpose(-1, -2) * layer.scale
            scores = softcapped(scores, layer.softcap)
            if mask is not None:
                scores = scores.masked_fill(~mask[t : t + step], float("-inf"))
            out[:, :, t : t + step] = scores.softmax(-1) @ values[:, None]
        return out.view(A, T, D)


def _mask(T: int, start: int, first: int, end: int, window: int | None) -> torch.Tensor | None:
    """[T, S] true where query `start` + t sees key `first` + s; None where it sees all."""
    if T == 1:
        return None  # the keys of a single query are cut to what it sees
    query = torch.arange(start, end)[:, None]
    key = torch.arange(first, end)[None]
    mask = key <= query
    return mask if window is None else mask & (key > query - window)


def _mlp(x: torch.Tensor, layer: LayerConfig, w: MLPWeights | MoEWeights) -> torch.Tensor:
    """[N, H] → [N, H]."""
    if isinstance(w, MLPWeights):
        return _gated(x, layer, w)
    assert layer.moe is not None
    weights, chosen = route(x, w.router, layer.moe)
    out = torch.zeros_like(x)
    for e in sorted(set(chosen.flatten().tolist())):
        token, place = torch.where(chosen == e)
        y = _gated(x[token], layer, w.experts[e])
        out.index_add_(0, token, y * weights[token, place, None])
    return out


def _gated(x: torch.Tensor, layer: LayerConfig, w: MLPWeights) -> torch.Tensor:
    if w.gate_bias is None and w.up_bias is None and w.down_bias is None:
        return gated_mlp(x, w.gate, w.up, w.down, layer.act)
    gate, up = linears(x, [w.gate, w.up], [w.gate_bias, w.up_bias])
    return linear(act_and_mul_split(gate, up, layer.act), w.down, w.down_bias)


def route(
    x: torch.Tensor, router: torch.Tensor, moe: MoEConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights, experts), each [N, top_k], of tokens [N, H]."""
    shares = (x @ router.T).softmax(-1)
    weights, chosen = shares.topk(moe.top_k, -1)
    if moe.normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, chosen
