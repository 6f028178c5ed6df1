"""The feed-forward network as modules: gated MLP, sublayer, mixture of experts."""

from __future__ import annotations

from gateup.nn.feed_forward import FeedForward, RMSNorm
from gateup.nn.gated_mlp import GatedMLP
from gateup.nn.linear import QuantEmbedding, QuantLinear
from gateup.nn.moe import MoE

__all__ = ["FeedForward", "GatedMLP", "MoE", "QuantEmbedding", "QuantLinear", "RMSNorm"]
