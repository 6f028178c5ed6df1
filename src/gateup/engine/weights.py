"""A decoder's weights in memory: packed matrices, float32 vectors. `loading.py` fills them.

Letters: H hidden_size, I intermediate_size, V vocab_size, D head_dim, E experts,
Q = num_heads·D, K = num_kv_heads·D. Matrices are [out, in].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gateup.ops.packed import PackedWeight, dequantise


@dataclass(frozen=True, slots=True)
class MLPWeights:
    """down(act(gate(x)) * up(x)): gate and up [I, H], down [H, I]; biases float32 or None."""

    gate: PackedWeight
    up: PackedWeight
    down: PackedWeight
    gate_bias: torch.Tensor | None = None
    up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class MoEWeights:
    """router [E, H] float32, and E experts."""

    router: torch.Tensor
    experts: tuple[MLPWeights, ...]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Norms and biases are float32 and contiguous.

    q [Q, H], k and v [K, H], o [H, Q]: a head's D rows in the Hub's order (halves, not pairs)
    input_norm, mlp_norm [H]: before attention, before the MLP
    q_norm, k_norm [D]: where the config says qk_norm
    attention_post_norm, mlp_post_norm [H]: where the config says post_norm
    """

    input_norm: torch.Tensor
    q: PackedWeight
    k: PackedWeight
    v: PackedWeight
    o: PackedWeight
    mlp_norm: torch.Tensor
    mlp: MLPWeights | MoEWeights
    q_bias: torch.Tensor | None = None
    k_bias: torch.Tensor | None = None
    v_bias: torch.Tensor | None = None
    o_bias: torch.Tensor | None = None
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    attention_post_norm: torch.Tensor | None = None
    mlp_post_norm: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """embed and head [V, H] (one object where they are tied), norm [H] before the head."""

    embed: PackedWeight
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: PackedWeight


# Rows dequantised at a time in the search below: 64 MB of a width of 16,384.
_ROWS = 1024


def first_not_finite(weights: Weights) -> str | None:
    """The name of the first matrix with a NaN or an infinity in it; None where there is none."""
    for name, w in _matrices(weights):
        for start in range(0, w.n, _ROWS):
            rows = torch.arange(start, min(start + _ROWS, w.n))
            if not bool(torch.isfinite(dequantise(w, rows)).all()):
                return name
    return None


def _matrices(weights: Weights) -> Iterator[tuple[str, PackedWeight]]:
    """Every matrix by its name, in the order of the forward pass."""
    yield "model.embed_tokens", weights.embed
    for i, layer in enumerate(weights.layers):
        for part in ("q", "k", "v", "o"):
            yield f"model.layers.{i}.self_attn.{part}_proj", getattr(layer, part)
        mlp = layer.mlp
        experts = [("", mlp)] if isinstance(mlp, MLPWeights) else _numbered(mlp)
        for place, one in experts:
            for part in ("gate", "up", "down"):
                yield f"model.layers.{i}.mlp.{place}{part}_proj", getattr(one, part)
    if weights.head is not weights.embed:
        yield "lm_head", weights.head


def _numbered(moe: MoEWeights) -> list[tuple[str, MLPWeights]]:
    return [(f"experts.{e}.", one) for e, one in enumerate(moe.experts)]
