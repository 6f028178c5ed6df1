"""All mixture-of-experts families: names, shapes and counts as transformers writes them."""

from __future__ import annotations

import copy
import tracemalloc
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateup.errors import ConfigError, GateupError
from gateup.model.families import build_spec, family_of, gguf_tensors
from gateup.model.spec import ModelSpec, MoESpec

FAMILIES = [
    "mixtral",
    "mixtral-one-expert",
    "qwen2_moe",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
    "gpt_oss",
    "llama4_text",
    "llama4",
    "olmoe",
]
# Switches whose other position changes the tensors.
VARIANTS: dict[str, dict[str, Any]] = {
    "mixtral": {"tie_word_embeddings": True, "head_dim": 24},
    "qwen2_moe": {"decoder_sparse_step": 2, "qkv_bias": False},
    "qwen3_moe": {"mlp_only_layers": [0, 2], "attention_bias": True},
    "deepseek_v2": {"q_lora_rank": 28, "attention_bias": True, "mlp_bias": True},
    "deepseek_v3": {"q_lora_rank": None, "attention_bias": True, "first_k_dense_replace": 2},
    "gpt_oss": {"attention_bias": False, "tie_word_embeddings": True},
    "llama4_text": {"moe_layers": [0, 3], "attention_bias": True},
    "olmoe": {"attention_bias": True, "num_key_value_heads": 4},
}
CASES = [(n, {}) for n in FAMILIES] + list(VARIANTS.items())


def build(config: dict[str, Any]) -> ModelSpec:
    return build_spec(config, where="config.json", name="tiny")


def saved_by_transformers(config: dict[str, Any], folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes in the safetensors file that transformers' class saves.

    In memory transformers 5 stacks the experts; on saving it goes back to the Hub's names.
    """
    import torch
    import transformers
    from safetensors import safe_open

    cls = getattr(transformers, config["architectures"][0])
    theirs = cls.config_class.from_dict({k: v for k, v in config.items() if k != "architectures"})
    if hasattr(theirs, "num_nextn_predict_layers"):
        theirs.num_nextn_predict_layers = 0
    if hasattr(theirs, "vision_config"):
        vision = theirs.vision_config
        vision.num_hidden_layers, vision.num_attention_heads = 1, 2
        vision.hidden_size = vision.intermediate_size = 16
    with torch.no_grad():
        cls(theirs).save_pretrained(folder)
    out = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (no mapping)
                out[name] = tuple(tensors.get_slice(name).get_shape())
    return out


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_tensors_are_those_transformers_saves(
    converted: dict[str, Any], tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    config = converted[name]["config"] | changes
    spec = build(config)
    theirs = saved_by_transformers(config, tmp_path)
    if name == "llama4":
        vision = {n for n in theirs if n.startswith(("vision_model.", "multi_modal_projector."))}
        assert vision
        assert any("vision" in note for note in spec.notes)
        theirs = {n: s for n, s in theirs.items() if n not in vision}
    assert {n: row.shape for n, row in spec.tensors()} == theirs
    assert spec.params == sum(prod(s) for s in theirs.values())


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_hold_together(converted: dict[str, Any], name: str) -> None:
    spec = build(converted[name]["config"])
    assert spec.family == (name if name != "mixtral-one-expert" else "mixtral")
    names = [n for n, _ in spec.tensors()]
    assert len(names) == len(set(names))
    for row in spec.rows:
        template = family_of(spec).names[row.role].hf.replace("{i}", str(row.layer))
        assert row.name == (template if row.copies > 1 else template.replace("{e}", "0"))
        assert ("{e}" in row.name) == (row.copies > 1)
        assert row.role.startswith("experts.") == (row.experts > 0)
        if row.experts:
            assert row.params % row.experts == 0
            assert row.active_params == row.params // row.experts * row.active_experts
        assert row.matmul == (
            row.part in ("attention", "mlp", "head")
            and len(row.shape) - (row.copies == 1 and bool(row.experts) and len(row.shape) == 3)
            == 2
            and not row.role.endswith(".bias")
        )
    for layer in spec.layers:
        rows = spec.layer_rows(layer.index)
        mlp = sum(r.active_params for r in rows if r.part == "mlp" and r.matmul)
        if isinstance(layer.mlp, MoESpec):
            router = layer.mlp.num_experts * spec.hidden_size
            gate = spec.hidden_size if layer.mlp.shared_gate else 0
            assert mlp == 3 * spec.hidden_size * layer.mlp.active_width + router + gate
        else:
            assert layer.mlp is not None
            assert mlp == 3 * spec.hidden_size * layer.mlp.intermediate_size


@pytest.mark.parametrize("name", FAMILIES)
def test_gguf_tensors_are_what_the_converter_writes(converted: dict[str, Any], name: str) -> None:
    spec = build(converted[name]["config"])
    tensors = gguf_tensors(spec)
    assert {t.name: list(t.ne) for t in tensors} == converted[name]["tensors"]
    assert sum(t.params for t in tensors) == spec.params
    for t in tensors:
        assert t.params in (0, t.elements)


@pytest.mark.parametrize("name", FAMILIES)
def test_gguf_names_are_llama_cpp_s(converted: dict[str, Any], name: str) -> None:
    import gguf

    spec = build(converted[name]["config"])
    arch = {n: arch for arch, n in gguf.MODEL_ARCH_NAMES.items()}[family_of(spec).gguf_arch or ""]
    allowed = {gguf.TENSOR_NAMES[kind] for kind in gguf.MODEL_TENSORS[arch]}
    for tensor in gguf_tensors(spec):
        stem = tensor.name.rsplit(".", 1)[0]
        layer = tensor.rows[0].layer if tensor.rows else None
        assert stem.replace(f"blk.{layer}.", "blk.{bid}.") in allowed


@pytest.mark.parametrize(
    "hub_name",
    [
        "mistralai/Mixtral-8x7B-v0.1",
        "Qwen/Qwen3-30B-A3B",
        "Qwen/Qwen1.5-MoE-A2.7B",
        "deepseek-ai/DeepSeek-V3",
        "openai/gpt-oss-20b",
    ],
)
def test_totals_of_known_models(known_models: dict[str, Any], hub_name: str) -> None:
    facts = known_models[hub_name]
    config = {k: v for k, v in facts.items() if v is not None and k != "mlp_bias"}
    spec = build({**config, "architectures": [facts["architecture"]]})
    assert spec.params == facts["total_params_computed"]
    if "active_params_computed" in facts:
        assert spec.active_params == facts["active_params_computed"]


def test_deepseek_v3_active_parameters(known_models: dict[str, Any]) -> None:
    """37.55 billion: by parts, from the widths alone."""
    facts = known_models["deepseek-ai/DeepSeek-V3"]
    config = {k: v for k, v in facts.items() if v is not None}
    spec = build({**config, "architectures": [facts["architecture"]]})
    H, L, V = 7168, 61, 129280
    q = H * 1536 + 1536 + 1536 * 128 * 192
    kv = H * (512 + 64) + 512 + 512 * 128 * (128 + 128)
    attention = q + kv + 128 * 128 * H
    sparse = (8 + 1) * 3 * H * 2048 + 256 * H + 256
    total = 2 * V * H + H + L * (attention + 2 * H) + 3 * 3 * H * 18432 + (L - 3) * sparse
    assert spec.active_params == total == 37_552_297_472


@pytest.mark.parametrize("name", FAMILIES)
def test_the_largest_numbers_allowed_stay_small(converted: dict[str, Any], name: str) -> None:
    """65,536 experts in 4,096 layers: rows stand for all copies, so memory follows the layers."""
    config = copy.deepcopy(converted[name]["config"])
    inner = config.get("text_config", config)
    inner["num_hidden_layers"] = 4096
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if key in inner:
            inner[key] = 65536
    tracemalloc.start()
    try:
        spec = build(config)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert spec.num_layers == 4096
    assert spec.params > 65536 * 2048 * 3 * 64 * 40
    assert len(spec.rows) < 4096 * 32
    assert peak < 100 << 20


KEYS = sorted(
    {
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "vocab_size", "hidden_act", "tie_word_embeddings",
        "num_local_experts", "num_experts", "n_routed_experts", "n_shared_experts",
        "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size",
        "decoder_sparse_step", "mlp_only_layers", "first_k_dense_replace", "moe_layer_freq",
        "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
        "num_nextn_predict_layers", "sliding_window", "use_sliding_window", "max_window_layers",
        "layer_types", "attention_bias", "mlp_bias", "qkv_bias", "swiglu_limit", "swiglu_alpha",
        "interleave_moe_layer_step", "moe_layers", "intermediate_size_mlp", "text_config",
        "attention_chunk_size", "no_rope_layers", "no_rope_layer_interval", "torch_dtype",
        "rope_scaling", "max_position_embeddings", "architectures", "model_type",
    }
)  # fmt: skip
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=4),
    st.lists(st.one_of(st.integers(-1, 9), st.text(max_size=3)), max_size=5),
    st.dictionaries(st.sampled_from(KEYS), st.integers(-1, 9), max_size=3),
    st.sampled_from(["full_attention", "sliding_attention", "gelu", "silu"]),
)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(FAMILIES),
    changes=st.dictionaries(st.sampled_from(KEYS), JUNK, min_size=1, max_size=4),
    dropped=st.lists(st.sampled_from(KEYS), max_size=2),
)
def test_no_config_escapes_as_another_error(
    converted: dict[str, Any], name: str, changes: dict[str, Any], dropped: list[str]
) -> None:
    config = copy.deepcopy(converted[name]["config"])
    inner = config.get("text_config", config)
    inner.update(changes)
    for key in dropped:
        inner.pop(key, None)
    try:
        spec = build(config)
    except GateupError as error:
        assert error.where  # noqa: PT017 (most examples are refused, some are fine)
        return
    assert spec.params > 0
    try:
        tensors = gguf_tensors(spec)
    except GateupError:
        return
    assert sum(t.params for t in tensors) == spec.params


MISTAKES = [
    ("mixtral", {"num_experts_per_tok": 7}, "num_experts_per_tok is 7", "at most the 6 experts"),
    ("mixtral", {"num_local_experts": 0}, "num_local_experts is 0", "from 1 to 65536"),
    ("mixtral", {"num_local_experts": None}, "num_local_experts is missing", "num_experts"),
    ("qwen2_moe", {"shared_expert_intermediate_size": "x"}, "is 'x'", "a whole number"),
    ("qwen3_moe", {"mlp_only_layers": "all"}, "mlp_only_layers is 'all'", "a list"),
    ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step is 0", "from 1"),
    ("deepseek_v3", {"kv_lora_rank": None}, "kv_lora_rank is missing", "kv_lora_rank"),
    ("deepseek_v2", {"n_shared_experts": -1}, "n_shared_experts is -1", "from 0"),
    ("gpt_oss", {"layer_types": ["full_attention"]}, "layer_types is", "a list of 4"),
    ("gpt_oss", {"swiglu_limit": float("nan")}, "swiglu_limit is nan", "finite"),
    ("llama4_text", {"no_rope_layers": [1]}, "no_rope_layers is [1]", "a list of 4"),
    ("llama4_text", {"intermediate_size_mlp": None}, "intermediate_size_mlp is missing", ""),
    ("olmoe", {"hidden_act": "mish"}, "hidden_act is 'mish'", "one of silu"),
]


@pytest.mark.parametrize(("name", "changes", "what", "expected"), MISTAKES)
def test_mistakes_are_named(
    converted: dict[str, Any], name: str, changes: dict[str, Any], what: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        build(converted[name]["config"] | changes)
    assert what in caught.value.what
    assert expected in (caught.value.expected or "")
    assert (caught.value.where or "").startswith("config.json")
