"""Every preset: its total against the class, against published figures, and its names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateup.errors import UsageError
from gateup.model import presets
from gateup.model.families import FAMILIES, gguf_tensors
from gateup.model.presets import PRESETS

NO_CLASS = {"openelm-270m", "openelm-450m", "openelm-1.1b", "openelm-3b"}

# Model of facts/models.json -> preset. The two left out have no total there, or no full config.
FACTS = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Llama-2-70b-hf": "llama-2-70b",
    "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
    "meta-llama/Llama-3.2-1B": "llama-3.2-1b",
    "mistralai/Mistral-7B-v0.1": "mistral-7b-v0.1",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "microsoft/Phi-3-mini-4k-instruct (same MLP sizes in Phi-3.5-mini)": "phi-3-mini",
    "Qwen/Qwen2.5-0.5B": "qwen2.5-0.5b",
    "Qwen/Qwen2.5-7B (also DeepSeek-R1-Distill-Qwen-7B)": "qwen2.5-7b",
    "Qwen/Qwen3-0.6B": "qwen3-0.6b",
    "Qwen/Qwen3-8B": "qwen3-8b",
    "Qwen/Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen/Qwen1.5-MoE-A2.7B": "qwen1.5-moe-a2.7b",
    "google/gemma-2b": "gemma-2b",
    "google/gemma-2-9b": "gemma-2-9b",
    "google/gemma-3-1b-it": "gemma-3-1b",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "openai/gpt-oss-20b": "gpt-oss-20b",
    "HuggingFaceTB/SmolLM2-135M": "smollm2-135m",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": "tinyllama-1.1b",
    "apple/OpenELM-270M": "openelm-270m",
}

# Totals that others publish: the `params` fields of keras-hub's preset lists.
PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "mistral-7b-v0.1": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,  # as listed for qwen2.5_math_1.5b; the coder's entry is wrong
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,  # as listed for qwen2.5_math_7b
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    # The published files' embedding has 262,208 rows, of which keras-hub keeps 262,144.
    "gemma-3-4b": 3_880_099_328 + 64 * 2560,
    "gemma-3-12b": 11_765_788_416 + 64 * 3840,
    "gemma-3-27b": 27_009_002_240 + 64 * 5376,
    "gpt-oss-20b": 20_914_757_184,
    "phi-3-mini": 3_821_079_552,
}

# I of each layer, as published with OpenELM's files (proj_2's input width).
OPENELM_WIDTHS = {
    "openelm-450m": [
        768, 1024, 1280, 1536, 1792, 2304, 2560, 2816, 3072, 3328, 3584, 3840, 4096, 4352, 4608,
        5120, 5376, 5632, 5888, 6144,
    ],
    "openelm-1.1b": [
        1024, 1280, 1536, 1792, 2048, 2304, 2560, 2816, 3072, 3328, 3584, 3840, 4096, 4608, 4608,
        5120, 5376, 5632, 5888, 6144, 6400, 6656, 6912, 7168, 7424, 7680, 7936, 8192,
    ],
    "openelm-3b": [
        1536, 1792, 2048, 2560, 2816, 3072, 3328, 3584, 4096, 4352, 4608, 4864, 5120, 5632, 5888,
        6144, 6400, 6656, 7168, 7424, 7680, 7936, 8192, 8704, 8960, 9216, 9472, 9728, 10240,
        10496, 10752, 11008, 11264, 11776, 12032, 12288,
    ],
}  # fmt: skip


def total_of_class(config: dict[str, Any]) -> int:
    """Parameters and persistent buffers of the text model, of transformers' class."""
    import torch
    import transformers

    cls = getattr(transformers, config["architectures"][0])
    theirs = cls.config_class.from_dict({k: v for k, v in config.items() if k != "architectures"})
    if hasattr(theirs, "num_nextn_predict_layers"):
        theirs.num_nextn_predict_layers = 0
    with torch.device("meta"):
        model = cls(theirs)
    saved = model.state_dict().keys()
    tensors = [*model.named_parameters(), *((n, b) for n, b in model.named_buffers() if n in saved)]
    vision = ("model.vision", "vision_model.", "multi_modal_projector.")
    return sum(t.numel() for n, t in tensors if not n.startswith(vision))


@pytest.mark.parametrize("name", sorted(set(PRESETS) - NO_CLASS))
def test_the_total_is_the_class_s(name: str) -> None:
    config = json.loads(json.dumps(PRESETS[name].config))
    assert presets.spec(name).params == total_of_class(config)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_the_total_is_the_published_one(name: str) -> None:
    assert presets.spec(name).params == PUBLISHED[name]


def test_the_models_of_the_facts_file(known_models: dict[str, Any]) -> None:
    with_total = {n for n, m in known_models.items() if m["total_params_computed"] is not None}
    assert with_total == set(FACTS)
    for hub_name, name in FACTS.items():
        facts, spec = known_models[hub_name], presets.spec(name)
        assert spec.params == facts["total_params_computed"], name
        assert spec.active_params == facts.get("active_params_computed", spec.active_params)


@pytest.mark.parametrize("name", sorted(OPENELM_WIDTHS))
def test_openelm_widths_and_totals(name: str) -> None:
    """V·H + Σ (q and o: 2·h·d·H, k and v: 2·kv·d·H, MLP 3·H·I, norms 2H + 2d) + H."""
    spec, config = presets.spec(name), PRESETS[name].config
    widths = OPENELM_WIDTHS[name]
    assert [x.mlp.intermediate_size for x in spec.layers if x.mlp] == widths  # type: ignore[union-attr]
    H, d = config["model_dim"], config["head_dim"]
    total = 32000 * H + H
    for h, kv, width in zip(config["num_query_heads"], config["num_kv_heads"], widths, strict=True):
        total += 2 * h * d * H + 2 * kv * d * H + 3 * H * width + 2 * H + 2 * d
    assert spec.params == total


def test_openelm_3b_is_as_large_as_its_files() -> None:
    """Three shards of 4.98, 4.9 and 2.26 GB hold it as float32."""
    assert abs(4 * presets.spec("openelm-3b").params - 12.14e9) < 0.02e9


def test_granite_is_as_large_as_its_files() -> None:
    """Four shards of 4.97, 4.99, 4.97 and 1.41 GB hold the 8B as bfloat16."""
    assert abs(2 * presets.spec("granite-3.1-8b").params - 16.34e9) < 0.02e9


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_each_preset_is_complete(name: str) -> None:
    preset, spec = PRESETS[name], presets.spec(name)
    assert preset.name == name == spec.name
    assert preset.hub_id.count("/") == 1
    assert len(preset.source) > 10
    assert spec.max_position_embeddings
    assert spec.architecture in FAMILIES[spec.family].architectures
    assert "dtype" not in preset.config or spec.dtype
    assert sum(t.params for t in gguf_tensors(spec)) <= spec.params


def test_the_file_s_own_dtype_is_known() -> None:
    unknown = {n for n in PRESETS if presets.spec(n).dtype is None}
    assert unknown == {"gpt2", "gpt2-medium"}  # their files say none


SAME = [
    ("llama-3-8b", "Llama-3-8B", "LLAMA_3_8B", "llama3-8b", "llama3:8b", "meta-llama-3-8b"),
    ("llama-3-8b", "meta-llama/Meta-Llama-3-8B-Instruct", "Meta-Llama-3-8B"),
    ("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", "llama3.1:8b", "llama-3-1-8b"),
    ("llama-2-7b", "meta-llama/Llama-2-7b-chat-hf", "llama2-7b"),
    ("llama-1-7b", "llama-7b", "huggyllama/llama-7b"),
    ("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct", "qwen-2.5-7b", "deepseek-r1-distill-qwen-7b"),
    ("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B-Base", "qwen3-30b"),
    ("gemma-3-27b", "google/gemma-3-27b-it", "gemma3:27b", "gemma-3-27b-pt"),
    ("mistral-7b", "mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
    ("mistral-7b-v0.1", "mistralai/Mistral-7B-v0.1"),
    ("mixtral-8x22b", "mistralai/Mixtral-8x22B-v0.1"),
    ("mixtral-8x22b-instruct", "mistralai/Mixtral-8x22B-Instruct-v0.1"),
    ("phi-3-mini", "microsoft/Phi-3-mini-4k-instruct"),
    ("deepseek-v3", "deepseek-ai/DeepSeek-V3-0324", "deepseek-v3-base"),
    ("deepseek-r1", "DeepSeek-R1-0528"),
    ("gpt-oss-20b", "openai/gpt-oss-20b", "gpt_oss_20b"),
    ("llama-4-scout", "meta-llama/Llama-4-Scout-17B-16E-Instruct"),
    ("smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct"),
    ("olmo-2-7b", "allenai/OLMo-2-1124-7B-Instruct", "olmo2-7b"),
    ("tinyllama-1.1b", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama"),
    ("openelm-1.1b", "apple/OpenELM-1_1B-Instruct"),
    ("gpt2", "GPT-2", "openai-community/gpt2"),
    ("bert-base", "google-bert/bert-base-uncased"),
]


@pytest.mark.parametrize("names", SAME, ids=lambda names: names[0])
def test_names_people_use(names: tuple[str, ...]) -> None:
    for name in names:
        found = presets.find(name)
        assert found is not None, name
        assert found.name == names[0], name


@pytest.mark.parametrize(
    "name",
    ["smollm2", "llama", "llama-3", "llama-3-18b", "qwen2.5-coder-7b", "", "/", "model.gguf", "it"],
)
def test_names_that_are_no_preset(name: str) -> None:
    assert presets.find(name) is None


def test_no_two_presets_share_a_name() -> None:
    seen: dict[str, str] = {}
    for preset in PRESETS.values():
        for name in {presets._key(n) for n in (preset.name, preset.hub_id, *preset.aliases)}:
            assert seen.setdefault(name, preset.name) == preset.name
    assert len(PRESETS) == sum(
        len(json.loads(p.read_text())) for p in Path(presets.__file__).parent.glob("*.json")
    )


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("lama-3-8b", "llama-3-8b"),
        ("llama-3-8", "llama-3-8b"),
        ("qwen3-30b-a3", "qwen3-30b-a3b"),
        ("deepsek-v3", "deepseek-v3"),
        ("mixtral-8x7", "mixtral-8x7b"),
        ("gpt-oss-20", "gpt-oss-20b"),
    ],
)
def test_typos_get_suggestions(typo: str, meant: str) -> None:
    assert presets.find(typo) is None
    near = presets.suggest(typo)
    assert near[0] == meant
    assert len(near) == len(set(near)) <= 3
    with pytest.raises(UsageError) as caught:
        presets.spec(typo)
    assert caught.value.what == f"{typo!r} is not a preset"
    assert caught.value.remedy == "did you mean " + " or ".join(near) + "?"


def test_nonsense_gets_none() -> None:
    assert presets.suggest("zzzzzzzz") == []
    with pytest.raises(UsageError) as caught:
        presets.spec("zzzzzzzz")
    assert caught.value.remedy is None
    assert "llama-3-8b" in (caught.value.expected or "")
