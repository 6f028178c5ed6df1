"""What the mixture-of-experts families share: names, rows, which layers are sparse."""

from __future__ import annotations

from collections.abc import Mapping

from gateup.model.config import MAX_LAYERS, Config
from gateup.model.families.base import GGUFTensor, Names, Rows, with_bias
from gateup.model.families.llama import NAMES as LLAMA_NAMES
from gateup.model.families.llama import without
from gateup.model.spec import GatedMLPSpec, ModelSpec, MoESpec, TensorSpec

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
_GGUF = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
# Megatron keeps gate and up in one tensor, gate first.
_FC = {"gate_proj": "linear_fc1", "up_proj": "linear_fc1", "down_proj": "linear_fc2"}
_MEGATRON = "decoder.layers.{i}.mlp."


def expert_names(block: str = "mlp") -> dict[str, Names]:
    """Router and experts one by one, as the Qwen, DeepSeek and OLMoE files name them."""
    head = "model.layers.{i}." + block
    table = {
        "router": Names(
            f"{head}.gate.weight",
            "blk.{i}.ffn_gate_inp.weight",
            megatron=_MEGATRON + "router.weight",
        )
    }
    for role in PROJECTIONS:
        table["experts." + role] = Names(
            f"{head}.experts.{{e}}.{role}.weight",
            f"blk.{{i}}.ffn_{_GGUF[role]}_exps.weight",
            megatron=f"{_MEGATRON}experts.local_experts.{{e}}.{_FC[role]}.weight",
        )
    return table


def shared_names(module: str) -> dict[str, Names]:
    """The shared expert under `module` ("mlp.shared_expert"); role "shared_expert.<proj>"."""
    return {
        "shared_expert." + role: Names(
            f"model.layers.{{i}}.{module}.{role}.weight",
            f"blk.{{i}}.ffn_{_GGUF[role]}_shexp.weight",
            megatron=f"{_MEGATRON}shared_experts.{_FC[role]}.weight",
        )
        for role in PROJECTIONS
    }


def moe_names(*tables: dict[str, Names], meta: bool = False) -> dict[str, Names]:
    """Llama's table plus `tables`; without Meta's names unless `meta`.

    Megatron gives the norm before sparse layers a module of its own.
    """
    names = dict(LLAMA_NAMES) if meta else without(LLAMA_NAMES, "meta")
    norm = "post_attention_layernorm"
    names[norm] = names[norm]._replace(megatron="decoder.layers.{i}.pre_mlp_layernorm.weight")
    for table in tables:
        names.update(with_bias(table))
    return names


def add_moe(rows: Rows, layer: int, hidden: int, moe: MoESpec) -> None:
    """Router [E, H], experts one by one, the shared expert and its gate [1, H]."""
    rows.linear("router", moe.num_experts, hidden, "mlp", layer, bias=moe.router_bias)
    rows.experts(layer, hidden, moe.expert, moe.num_experts, moe.top_k)
    if moe.shared:
        rows.gated_mlp(layer, hidden, moe.shared, prefix="shared_expert.")
    if moe.shared_gate:
        rows.linear("shared_expert_gate", 1, hidden, "mlp", layer)


def add_stacked(rows: Rows, layer: int, hidden: int, moe: MoESpec) -> None:
    """Stacked input-major experts: gate_up_proj [E, H, 2I], down_proj [E, I, H], bias [E, out]."""
    count, width = moe.num_experts, moe.expert.intermediate_size
    shapes = [
        ("experts.gate_up_proj", (count, hidden, 2 * width)),
        ("experts.gate_up_proj.bias", (count, 2 * width)),
        ("experts.down_proj", (count, width, hidden)),
        ("experts.down_proj.bias", (count, hidden)),
    ]
    for role, shape in shapes:
        is_bias = role.endswith(".bias")
        if is_bias and not moe.expert.bias:
            continue
        rows.add(role, shape, "mlp", layer, matmul=not is_bias, experts=count, active=moe.top_k)


def merged_experts(spec: ModelSpec, row: TensorSpec) -> list[GGUFTensor] | None:
    """llama.cpp keeps the expert axis even where there is a single expert."""
    if row.role.startswith("experts.") and row.copies == 1:
        role = row.role.removeprefix("experts.")
        name = f"blk.{row.layer}.ffn_{_GGUF[role]}_exps.weight"
        return [GGUFTensor(name, (*reversed(row.shape), 1), (row,), row.params)]
    return None


def split_stacked(spec: ModelSpec, row: TensorSpec) -> list[GGUFTensor] | None:
    """Stacked input-major experts: gate and up become tensors of their own, rows input-wide."""
    if not row.role.startswith("experts."):
        return None
    is_bias = row.role.endswith(".bias")
    suffix = "bias" if is_bias else "weight"
    # weight [E, in, out] -> ne [in, out, E]; bias [E, out] -> ne [out, E]
    experts, out = row.shape[0], row.shape[-1]
    inputs = () if is_bias else (row.shape[1],)
    halves = ("gate", "up") if "gate_up" in row.role else ("down",)
    ne = (*inputs, out // len(halves), experts)
    return [
        GGUFTensor(f"blk.{row.layer}.ffn_{h}_exps.{suffix}", ne, (row,), row.params // len(halves))
        for h in halves
    ]


def sparse_step_layers(cfg: Config, layers: int) -> list[bool]:
    """Qwen's rule: every `decoder_sparse_step`-th layer, save those in `mlp_only_layers`."""
    step = cfg.integer("decoder_sparse_step", default=1)
    dense = set(cfg.integers("mlp_only_layers")) if cfg.has("mlp_only_layers") else set()
    return [i not in dense and (i + 1) % step == 0 for i in range(layers)]


def dense_and_moe(rows: Rows, layer: int, hidden: int, mlp: GatedMLPSpec | MoESpec) -> None:
    """The feed-forward rows of a layer that is either dense or sparse."""
    if isinstance(mlp, MoESpec):
        add_moe(rows, layer, hidden, mlp)
    else:
        rows.gated_mlp(layer, hidden, mlp)


def sparse_layers(shapes: Mapping[str, tuple[int, ...]], layers: object) -> list[int]:
    """The layers of a GGUF that have a router."""
    if not isinstance(layers, int) or not 0 < layers <= MAX_LAYERS:
        return []
    return [i for i in range(layers) if f"blk.{i}.ffn_gate_inp.weight" in shapes]
