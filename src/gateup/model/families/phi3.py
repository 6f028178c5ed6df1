"""Phi-3 and Phi-4: q, k, v in one tensor, gate and up in another (gate rows first)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateup.model.families.base import Family, GGUFTensor, Names
from gateup.model.families.llama import GGUF_KEYS, HUB_NAMES, DenseShape, builder, rope_scaling
from gateup.model.families.windows import on_every_layer
from gateup.model.spec import ModelSpec

PHI3_NAMES = HUB_NAMES | {
    "qkv_proj": Names("model.layers.{i}.self_attn.qkv_proj.weight", "blk.{i}.attn_qkv.weight"),
    # llama.cpp keeps the pair fused under the name of up.
    "gate_up_proj": Names("model.layers.{i}.mlp.gate_up_proj.weight", "blk.{i}.ffn_up.weight"),
}


def rope_factors(spec: ModelSpec) -> list[GGUFTensor]:
    """Long-context models carry two tables of rotary factors, one entry per pair of dimensions."""
    scaling = rope_scaling(spec.config)
    long = scaling.get("long_factor")
    count = len(long) if isinstance(long, list) else scaling.get("factor_count", 0)
    if not isinstance(count, int) or count < 1:
        return []
    return [
        GGUFTensor(f"rope_factors_{kind}.weight", (count,), (), 0) for kind in ("long", "short")
    ]


def config_of_phi3_gguf(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], config: dict[str, Any]
) -> dict[str, Any]:
    """llama.cpp writes a window of 0 for none; of the factor tables only the length is taken."""
    del metadata
    if config.get("sliding_window") == 0:
        config["sliding_window"] = None
    if "rope_factors_long.weight" in shapes:
        count = shapes["rope_factors_long.weight"][0]
        config["rope_scaling"] = {"rope_type": "longrope", "factor_count": count}
    return config


PHI3 = Family(
    model_type="phi3",
    architectures=("Phi3ForCausalLM",),
    names=PHI3_NAMES,
    build=builder(
        DenseShape("phi3", "Phi3ForCausalLM", PHI3_NAMES, fused=True, windows=on_every_layer)
    ),
    gguf_arch="phi3",
    gguf_keys=GGUF_KEYS,
    gguf_extra=rope_factors,
    gguf_config=config_of_phi3_gguf,
)

FAMILIES = (PHI3,)
