"""The gated MLP as functions on tensors.

The functions bear their modules' names and are bound here at once: importing `gateup.ops.moe` for
something else in it would otherwise leave the module, which cannot be called, under that name.
"""

from __future__ import annotations

from gateup.model.layout import GateUpLayout
from gateup.ops.act_and_mul import act_and_mul, act_and_mul_split
from gateup.ops.activations import ACTIVATIONS
from gateup.ops.classic import classic_ffn
from gateup.ops.gated_mlp import Weights, gated_mlp, gated_mlp_fused
from gateup.ops.moe import ExpertWeights, moe
from gateup.ops.options import MLPOptions
from gateup.ops.routing import Routing, route, routing_for

__all__ = [
    "ACTIVATIONS",
    "ExpertWeights",
    "GateUpLayout",
    "MLPOptions",
    "Routing",
    "Weights",
    "act_and_mul",
    "act_and_mul_split",
    "classic_ffn",
    "gated_mlp",
    "gated_mlp_fused",
    "moe",
    "route",
    "routing_for",
]
