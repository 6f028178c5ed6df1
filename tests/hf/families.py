"""Every family of the table as a tiny random model of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

TINY: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_WIDE_HEADS = {"head_dim": 8}
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}

# model_type of the text model -> what its config has beside TINY.
DENSE: dict[str, dict[str, Any]] = {
    "llama": {"mlp_bias": True},
    "mistral": {},
    "qwen2": {},
    "qwen3": _WIDE_HEADS,
    "gemma": _WIDE_HEADS,
    "gemma2": _WIDE_HEADS,
    "gemma3_text": _WIDE_HEADS,
    "phi3": {},
    "olmo2": {},
    "granite": {},
    "smollm3": {},
}
MOE: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    # The first layer is dense.
    "qwen2_moe": {
        **_MOE,
        "num_experts": 4,
        "shared_expert_intermediate_size": 40,
        "mlp_only_layers": [0],
    },
    "qwen3_moe": {**_MOE, **_WIDE_HEADS, "num_experts": 4, "mlp_only_layers": [0]},
    "deepseek_v3": {
        **_MOE,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
    },
    "gpt_oss": {
        **_WIDE_HEADS,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
}
FAMILIES = {**DENSE, **MOE}
# The classes each model holds, by number of modules.
CLASSES: dict[str, dict[str, int]] = {
    "llama": {"LlamaMLP": 2},
    "mistral": {"MistralMLP": 2},
    "qwen2": {"Qwen2MLP": 2},
    "qwen3": {"Qwen3MLP": 2},
    "gemma": {"GemmaMLP": 2},
    "gemma2": {"Gemma2MLP": 2},
    "gemma3_text": {"Gemma3MLP": 2},
    "phi3": {"Phi3MLP": 2},
    "olmo2": {"Olmo2MLP": 2},
    "granite": {"GraniteMLP": 2},
    "smollm3": {"SmolLM3MLP": 2},
    "mixtral": {"MixtralExperts": 2},
    "qwen2_moe": {"Qwen2MoeMLP": 2, "Qwen2MoeExperts": 1},
    "qwen3_moe": {"Qwen3MoeMLP": 1, "Qwen3MoeExperts": 1},
    "deepseek_v3": {"DeepseekV3MLP": 2, "DeepseekV3Experts": 1},
    "gpt_oss": {"GptOssExperts": 2},
}


def build(
    family: str, dtype: torch.dtype = torch.float32, *, seed: int = 0, **config: Any
) -> PreTrainedModel:
    """A model of `family`, every parameter random, so that no gradient is zero by accident.

    `config` goes on top of the family's; experts_implementation is transformers' own option.
    """
    generator = torch.Generator().manual_seed(seed)
    implementation = config.pop("experts_implementation", None)
    made = AutoConfig.for_model(family, **TINY | FAMILIES[family] | config)
    extra = {"experts_implementation": implementation} if implementation else {}
    model: PreTrainedModel = AutoModelForCausalLM.from_config(made, **extra).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator) * 0.1
            parameter.copy_(drawn + 1 if parameter.dim() == 1 else drawn)
    return model.eval()


def tokens(seed: int = 0, shape: tuple[int, int] = (2, 17)) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, TINY["vocab_size"], shape, generator=generator)


def step(model: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    """Logits and every gradient of one training step, by name."""
    model.zero_grad()
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    results = {"logits": out.logits.detach()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            results[name] = parameter.grad.clone()
    return results


def differing(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> list[str]:
    """Names whose tensors differ in a bit, or that only one side has."""
    names = ours.keys() | theirs.keys()
    return sorted(
        n for n in names if n not in ours or n not in theirs or not torch.equal(ours[n], theirs[n])
    )
