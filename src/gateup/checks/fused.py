"""Layers whose gate and up lie in another form than the architecture's: fused, or apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from gateup.checks.context import Context
from gateup.files.header import TensorHeader


class Fusion(NamedTuple):
    """A name that holds gate and up together, and what its writers put first."""

    writers: str
    order: str


# Name between layer and ".weight" -> who writes it, how its halves lie by their own account.
FUSED: Mapping[str, Fusion] = {
    "gate_up_proj": Fusion("Phi-3, GLM-4, vLLM", "halves, gate first"),
    "linear_fc1": Fusion("Megatron-Core", "halves of each rank's shard, gate first"),
    "dense_h_to_4h": Fusion("ChatGLM, older Megatron", "halves, gate first"),
    "w13": Fusion("vLLM's fused experts", "halves, gate first"),
    "w13_weight": Fusion("vLLM's fused experts", "halves, gate first"),
    "w12": Fusion("xFormers' SwiGLU", "halves, gate first"),
}
APART = ("gate_proj", "up_proj")
_PLACE = re.compile(r"(?:^|\.)(?:layers|h|blk)\.(\d{1,6})\..*?([a-z0-9_]+?)(?:\.weight|\.bias)?$")


def fused_layers(context: Context) -> dict[int, tuple[TensorHeader, ...]]:
    """Layer -> tensors that stand for its gate and up in another form.

    Only layers whose own gate and up are absent count.
    """
    absent: dict[int, set[str]] = {}
    for m in context.mismatches("absent"):
        for row in m.rows:
            if row.layer is not None and row.part == "mlp":
                absent.setdefault(row.layer, set()).add(row.role.rpartition(".")[2])
    out: dict[int, list[TensorHeader]] = {}
    for m in context.mismatches("unknown"):
        for tensor in m.tensors:
            match = _PLACE.search(tensor.name)
            if match is None:
                continue
            layer, stem = int(match[1]), match[2]
            roles = absent.get(layer, set())
            fused = stem in FUSED and bool(roles & {"gate_proj", "up_proj"})
            apart = stem in APART and "gate_up_proj" in roles
            if fused or apart:
                out.setdefault(layer, []).append(tensor)
    return {layer: tuple(tensors) for layer, tensors in out.items()}


def stem_of(tensor: TensorHeader) -> str:
    """The part of its name that FUSED and APART list."""
    match = _PLACE.search(tensor.name)
    return match[2] if match else tensor.name
