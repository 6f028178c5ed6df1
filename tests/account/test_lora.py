"""Adapter counts against PEFT itself, targets by name and group, the errors for those that miss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model

from gateup.account.lora import CONVERTED, adapter_nbytes, adapter_rows, resolve_targets
from gateup.account.workload import LoRA
from gateup.errors import UsageError
from gateup.model import presets
from gateup.model.families import build_spec
from gateup.model.spec import ModelSpec

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MLA: dict[str, Any] = {
    **BASE,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
CONFIGS: dict[str, Any] = {
    "llama": (transformers.LlamaConfig, BASE),
    "qwen2": (transformers.Qwen2Config, BASE),
    "qwen3": (transformers.Qwen3Config, {**BASE, "head_dim": 32}),
    "gemma2": (transformers.Gemma2Config, {**BASE, "head_dim": 32}),
    "phi3": (transformers.Phi3Config, BASE),
    "olmo2": (transformers.Olmo2Config, BASE),
    "gpt2": (transformers.GPT2Config, {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128}),
    "mixtral": (transformers.MixtralConfig, {**BASE, "num_local_experts": 4}),
    "qwen2_moe": (
        transformers.Qwen2MoeConfig,
        {**BASE, **EXPERTS, "shared_expert_intermediate_size": 48},
    ),
    "qwen3_moe": (transformers.Qwen3MoeConfig, {**BASE, **EXPERTS}),
    "olmoe": (transformers.OlmoeConfig, {**BASE, "num_experts": 4, "num_experts_per_tok": 2}),
    "gpt_oss": (transformers.GptOssConfig, {**BASE, "num_local_experts": 4}),
    "deepseek_v2": (transformers.DeepseekV2Config, MLA),
    "deepseek_v3": (transformers.DeepseekV3Config, MLA),
    "llama4_text": (
        transformers.Llama4TextConfig,
        {**BASE, "num_local_experts": 4, "intermediate_size_mlp": 96, "head_dim": 16},
    ),
}


def pair(kind: str) -> tuple[ModelSpec, Any]:
    """The spec and transformers' model on the meta device."""
    config_class, values = CONFIGS[kind]
    config = config_class(**values)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    described = {**config.to_dict(), "architectures": [type(model).__name__]}
    return build_spec(described, where="config", name=kind), model


def peft_params(model: Any, rank: int, targets: Any, parameters: Any = None) -> int:
    config = LoraConfig(r=rank, target_modules=targets, target_parameters=parameters)
    with torch.device("meta"):
        adapted = get_peft_model(model, config)
    return sum(p.numel() for p in adapted.parameters() if p.requires_grad)


def ours(spec: ModelSpec, rank: int, *targets: str) -> int:
    return sum(r.params for r in adapter_rows(spec, LoRA(rank, targets=targets)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CONFIGS)
def test_all_linear_is_what_peft_adapts(kind: str) -> None:
    spec, model = pair(kind)
    assert ours(spec, 4, "all") == peft_params(model, 4, "all-linear")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "targets"),
    [
        ("llama", ("gate_proj", "up_proj", "down_proj")),
        ("llama", ("q_proj", "v_proj")),
        ("llama", ("mlp.gate_proj", "self_attn.o_proj")),
        ("llama", ("lm_head", "q_proj")),
        ("phi3", ("gate_up_proj", "qkv_proj")),
        ("qwen2_moe", ("gate_proj", "up_proj", "down_proj")),
        ("qwen3_moe", ("gate_proj", "up_proj", "down_proj")),
        ("qwen3_moe", ("gate", "q_proj")),
        ("mixtral", ("w1", "w2", "w3", "gate")),
        ("deepseek_v3", ("gate_proj", "up_proj", "down_proj", "q_a_proj")),
    ],
)
def test_named_targets_are_what_peft_adapts(kind: str, targets: tuple[str, ...]) -> None:
    spec, model = pair(kind)
    assert ours(spec, 3, *targets) == peft_params(model, 3, list(targets))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["qwen2_moe", "gpt_oss", "llama4_text", "mixtral"])
def test_experts_are_target_parameters(kind: str) -> None:
    spec, model = pair(kind)
    names = ["experts.gate_up_proj", "experts.down_proj"]
    assert ours(spec, 4, "experts") == peft_params(model, 4, [], names)


@pytest.mark.parametrize("rank", [1, 8, 16, 64])
def test_llama_3_8b(rank: int) -> None:
    spec = presets.spec("llama-3-8b")
    rows = adapter_rows(spec, LoRA(rank))
    layer = [r for r in rows if r.layer == 5]
    assert sum(r.params for r in layer) == 81_920 * rank
    mlp = sum(r.params for r in layer if r.row.part == "mlp")
    assert round(1000 * mlp / sum(r.params for r in layer)) == 675
    assert sum(r.params for r in rows) == 32 * 81_920 * rank
    assert adapter_nbytes(rows, "f32") == 4 * 32 * 81_920 * rank


def test_groups_are_disjoint_and_whole() -> None:
    spec = presets.spec("llama-3-8b")
    attention, mlp = resolve_targets(spec, ["attention"]), resolve_targets(spec, ["mlp"])
    assert attention == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert mlp == {"gate_proj", "up_proj", "down_proj"}
    assert resolve_targets(spec, ["all"]) == attention | mlp


def test_head_only_by_name() -> None:
    spec = presets.spec("llama-3-8b")
    assert "lm_head" not in resolve_targets(spec, ["all"])
    assert resolve_targets(spec, ["lm_head"]) == {"lm_head"}


def test_dense_mlps_are_left_out_where_the_names_mean_experts() -> None:
    """DeepSeek-V3's first three layers are dense; PEFT's conversion takes their names away."""
    spec = presets.spec("deepseek-v3")
    layers = {r.layer for r in adapter_rows(spec, LoRA(2, targets=("mlp",)))}
    assert layers == set(range(3, 61))


def test_expert_rank_is_doubled_for_the_fused_pair() -> None:
    spec = presets.spec("qwen3-30b-a3b")
    rows = {r.name.rpartition(".")[2]: r for r in adapter_rows(spec, LoRA(8)) if r.layer == 0}
    assert (rows["gate_up_proj"].rank, rows["down_proj"].rank, rows["gate"].rank) == (16, 8, 8)
    assert rows["gate_up_proj"].params == 128 * 16 * (2048 + 2 * 768)


def test_missed_target_names_the_nearest() -> None:
    spec = presets.spec("phi-3-mini")
    with pytest.raises(UsageError) as error:
        resolve_targets(spec, ["q_proj", "gate_proj"])
    text = str(error.value)
    assert text.startswith("LoRA target 'q_proj' matches no linear module of ")
    assert "qkv_proj" in text
    assert text.endswith("or all, attention, mlp")


def test_fused_gate_up_is_named_for_gate() -> None:
    with pytest.raises(UsageError) as error:
        resolve_targets(presets.spec("phi-3-mini"), ["gate_proj"])
    assert error.value.expected is not None
    assert error.value.expected.startswith("one of gate_up_proj")


def test_stacked_experts_point_to_their_target() -> None:
    with pytest.raises(UsageError) as error:
        resolve_targets(presets.spec("gpt-oss-20b"), ["gate_up_proj"])
    assert error.value.remedy == (
        "routed experts are stacked parameters in transformers 5: use the target experts"
    )


@pytest.mark.parametrize("family", ["qwen3-30b-a3b", "mixtral-8x7b"])
def test_half_of_a_fused_pair_is_refused(family: str) -> None:
    spec = presets.spec(family)
    half = list(CONVERTED[spec.family])[1]
    with pytest.raises(UsageError, match="one of the experts' gate and up only"):
        resolve_targets(spec, [half])
