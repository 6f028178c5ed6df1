"""A model's numbers, by its preset's name: {{llama-3-8b/mlp_share}}."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import ceil
from typing import get_args

from gateup.account.crossover import crossover
from gateup.account.flops import decode_flops
from gateup.account.kv import kv_nbytes
from gateup.account.saved import Precision, saved_mlp
from gateup.account.scenario import stored_in
from gateup.account.workload import Save, Training, Workload
from gateup.errors import GateupError
from gateup.files.checkpoint import open_model
from gateup.lab.handbook.writers import Number
from gateup.model.spec import AttentionSpec, LayerSpec, ModelSpec, MoESpec, active_width


@cache
def opened(name: str) -> ModelSpec:
    """The preset called `name`."""
    return open_model(name).spec


@cache
def of_model(name: str) -> Mapping[str, Number]:
    """Sizes, parameters, FLOPs and bytes. Raises KeyError for a name that is no preset."""
    try:
        spec = opened(name)
    except GateupError as e:
        raise KeyError(name) from e
    out: dict[str, Number] = {
        "H": spec.hidden_size,
        "V": spec.vocab_size,
        "L": spec.num_layers,
        "params": spec.params,
        "active": spec.active_params,
        "active_share": spec.active_params / spec.params,
        "mlp": spec.part_params("mlp"),
        "mlp_share": spec.part_params("mlp") / spec.params,
    }
    out |= _layer(spec, spec.layers[-1])
    out |= _flops(spec)
    out |= _bytes(spec)
    return out


def _layer(spec: ModelSpec, layer: LayerSpec) -> dict[str, Number]:
    """The last layer's: what is after DeepSeek's dense ones is like the rest."""
    mlp, attention = layer.mlp, layer.attention
    assert mlp is not None
    assert attention is not None
    expert = mlp.expert if isinstance(mlp, MoESpec) else mlp
    whole = sum(r.params for r in spec.layer_rows(layer.index))
    own = spec.part_params("mlp", layer.index)
    out: dict[str, Number] = {
        "I": expert.intermediate_size,
        "ratio": expert.intermediate_size / spec.hidden_size,
        "active_I": active_width(mlp),
        "matrix": spec.hidden_size * expert.intermediate_size,
        "layer_mlp": own,
        "layer_share": own / whole,
        "mlp_flops": 2 * mlp.matrices * spec.hidden_size * active_width(mlp),
        "classic_params": 8 * spec.hidden_size**2,
        "classic_flops": 16 * spec.hidden_size**2,
    }
    out |= _attention(spec, layer, attention, whole)
    if isinstance(mlp, MoESpec):
        out |= {
            "experts": mlp.num_experts,
            "top_k": mlp.top_k,
            "router": mlp.num_experts * spec.hidden_size,
            "expert_params": expert.matrices * spec.hidden_size * expert.intermediate_size,
        }
    return out


def _attention(
    spec: ModelSpec, layer: LayerSpec, attention: AttentionSpec, whole: int
) -> dict[str, Number]:
    """Heads, and the MLP's share of the layer if every query head had its own K and V."""
    added = attention.num_heads - attention.num_kv_heads
    per_head = spec.hidden_size * (attention.head_dim + attention.v_head_dim)
    # Biases and norms of the added heads are left out: fewer than 0.1% of a layer.
    without = spec.part_params("mlp", layer.index) / (whole + added * per_head)
    return {
        "heads": attention.num_heads,
        "kv_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "share_without_gqa": without,
        "attention_width": attention.num_heads * attention.head_dim / spec.hidden_size,
    }


def _flops(spec: ModelSpec) -> dict[str, Number]:
    """Per token; the crossings of the last kind of layer."""
    point = crossover(spec).layers[-1]
    out: dict[str, Number] = {
        "flops_share": decode_flops(spec, 1).mlp_share,
        "flops_share_32k": decode_flops(spec, 32768, mla="expanded").mlp_share,
        "flops_mlp": decode_flops(spec, 1).gemm["mlp"],
    }
    if point.token is not None:
        out["crossover"] = ceil(point.token)
    if point.prefill is not None:
        out["crossover_prefill"] = ceil(point.prefill)
    return out


def _bytes(spec: ModelSpec) -> dict[str, Number]:
    """Files in fp16 and q4_k_m (tensor data), the cache of a token, what autograd keeps in bf16."""
    half = sum(t.nbytes for t in stored_in(spec, "gguf:f16"))
    out: dict[str, Number] = {
        "f16_bytes": half,
        "kv_token": int(kv_nbytes(spec, 1, "bf16").value),
        "mlp_bytes_bf16": 2 * spec.part_params("mlp"),
    }
    for fmt in ("q8_0", "q4_k_m"):
        stored = stored_in(spec, fmt)
        out[f"{fmt}_bytes"] = sum(t.nbytes for t in stored)
        out[f"{fmt}_of_f16"] = sum(t.nbytes for t in stored) / half
        out[f"{fmt}_bits"] = 8 * sum(t.nbytes for t in stored) / spec.params
        down = [t for t in stored if t.row is not None and t.row.role.endswith("down_proj")]
        out[f"{fmt}_down_q6"] = sum(t.type == "q6_k" for t in down)
    layer = spec.layers[-1]
    for save in get_args(Save):
        work = Workload(training=Training(method="full", save=save))
        assert work.training is not None
        precision = Precision((), work, work.training)
        terms = saved_mlp(layer, spec.hidden_size, save, precision)
        out[f"saved_{save}"] = sum(t.value for t in terms)
    return out
