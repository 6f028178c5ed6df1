"""From GGUF metadata back to a config: round trips, old files, and what is wrong with bad ones."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateup.errors import ConfigError, GateupError, UnknownArchitectureError
from gateup.model.families import FAMILIES, build_spec, gguf_tensors
from gateup.model.families.gguf_config import config_from_gguf

Facts = dict[str, dict[str, Any]]


def shapes_of(model: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(ne) for name, ne in model["tensors"].items()}


def read(model: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The config from a converted model's header; a change of None takes the key away."""
    arch = model["metadata"]["general.architecture"]
    metadata = dict(model["metadata"])
    for key, value in changes.items():
        full = f"{arch}.{key.replace('__', '.')}"
        if value is None:
            metadata.pop(full, None)
        else:
            metadata[full] = value
    return config_from_gguf(metadata, shapes_of(model), "model.gguf")


def test_the_facts_cover_every_gguf_architecture(converted: Facts) -> None:
    covered = {m["metadata"]["general.architecture"] for m in converted.values()}
    assert covered == {f.gguf_arch for f in FAMILIES.values() if f.gguf_arch}
    types = {m["config"]["model_type"] for m in converted.values()}
    assert types >= set(FAMILIES) - {"gemma3"}  # the same GGUF as gemma3_text


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One case per converted model."""
    if "model_name" in metafunc.fixturenames:
        import json

        facts = Path(__file__).parents[2] / "facts" / "gguf.json"
        metafunc.parametrize("model_name", list(json.loads(facts.read_text())["models"]))


def test_a_header_gives_back_the_model(converted: Facts, model_name: str) -> None:
    model = converted[model_name]
    original = build_spec(model["config"], where="config.json", name="m")
    config = read(model)
    again = build_spec(config, where="model.gguf", name="m")
    assert again.layers == original.layers
    assert again.vocab_size == original.vocab_size
    assert again.tie_word_embeddings == original.tie_word_embeddings
    assert again.max_position_embeddings == original.max_position_embeddings
    tensors = [(t.name, t.ne, t.params) for t in gguf_tensors(again)]
    assert tensors == [(t.name, t.ne, t.params) for t in gguf_tensors(original)]
    assert {t[0]: list(t[1]) for t in tensors} == model["tensors"]


def test_one_architecture_may_stand_for_several_families(converted: Facts) -> None:
    chosen = {name: read(model)["model_type"] for name, model in converted.items()}
    assert chosen["llama"] == chosen["mistral"] == "llama"
    assert chosen["mixtral"] == "mixtral"
    assert chosen["deepseek_v2"] == "deepseek_v2"
    assert chosen["deepseek_v3"] == "deepseek_v3"
    assert chosen["llama4"] == chosen["llama4_text"] == "llama4_text"


def test_values_that_tensors_do_not_show_are_kept(converted: Facts) -> None:
    config = read(converted["deepseek_v3"])
    assert config["routed_scaling_factor"] == pytest.approx(2.5)
    assert config["norm_topk_prob"] is True
    assert (config["n_group"], config["topk_group"]) == (2, 1)
    assert read(converted["llama"])["rope_theta"] == 10000.0


def test_old_deepseek_files_with_attn_kv_b(converted: Facts) -> None:
    """Before the split: key_length is nope + rope, all heads have keys, one kv_b tensor."""
    model = copy.deepcopy(converted["deepseek_v2"])
    for i in range(3):
        for part in "kv":
            del model["tensors"][f"blk.{i}.attn_{part}_b.weight"]
        model["tensors"][f"blk.{i}.attn_kv_b.weight"] = [32, 4 * (12 + 20)]
    config = read(
        model,
        attention__key_length=20,
        attention__value_length=20,
        attention__key_length_mla=None,
        attention__value_length_mla=None,
        attention__head_count_kv=4,
    )
    original = build_spec(model["config"], where="config.json", name="m")
    spec = build_spec(config, where="model.gguf", name="m")
    assert spec.layers == original.layers
    assert {t.name: list(t.ne) for t in gguf_tensors(spec)} == model["tensors"]


def test_missing_expert_widths_are_read_off_the_tensors(converted: Facts) -> None:
    config = read(
        converted["qwen2_moe"],
        expert_feed_forward_length=None,
        expert_shared_feed_forward_length=None,
    )
    assert config["moe_intermediate_size"] == 40
    assert config["shared_expert_intermediate_size"] == 48


def test_an_array_of_equal_numbers_is_that_number(converted: Facts) -> None:
    config = read(converted["llama"], attention__head_count_kv=[2, 2, 2])
    assert config == read(converted["llama"])


def test_padding_in_the_vocabulary_is_the_tensor_s(converted: Facts) -> None:
    """vocab_size may be the tokenizer's length; the embedding's rows decide."""
    assert read(converted["llama"], vocab_size=151)["vocab_size"] == 160
    model = copy.deepcopy(converted["llama"])
    del model["tensors"]["token_embd.weight"]
    assert read(model, vocab_size=151)["vocab_size"] == 151


@pytest.mark.parametrize(
    ("pattern", "windowed"),
    [
        (None, [True, False, True, False]),
        (4, [True, True, True, False]),
        (0, [True] * 4),
        ([False, True, True, False], [False, True, True, False]),
        ([1, 0, 0, 1], [True, False, False, True]),
    ],
)
def test_patterns_of_windows(converted: Facts, pattern: Any, windowed: list[bool]) -> None:
    config = read(converted["gpt_oss"], attention__sliding_window_pattern=pattern)
    spec = build_spec(config, where="model.gguf", name="m")
    assert [x.attention.window == 128 for x in spec.layers if x.attention] == windowed


def test_no_window_key_means_no_window(converted: Facts) -> None:
    config = read(converted["gpt_oss"], attention__sliding_window=None)
    spec = build_spec(config, where="model.gguf", name="m")
    assert {x.attention.window for x in spec.layers if x.attention} == {None}


def test_llama4_without_chunks(converted: Facts) -> None:
    config = read(converted["llama4_text"], attention__sliding_window=0)
    spec = build_spec(config, where="model.gguf", name="m")
    assert {x.attention.window for x in spec.layers if x.attention} == {None}


def test_a_latent_model_without_experts(converted: Facts) -> None:
    model = copy.deepcopy(converted["deepseek_v2"])
    for name in [n for n in model["tensors"] if "_exps" in n or "gate_inp" in n or "_shexp" in n]:
        del model["tensors"][name]
    config = read(model, expert_count=None, expert_used_count=None, expert_shared_count=0)
    assert config["n_routed_experts"] is None
    spec = build_spec(config, where="model.gguf", name="m")
    assert spec.active_params == spec.params


def test_the_real_file(smollm2_gguf: Path) -> None:
    from gguf import GGUFReader

    reader = GGUFReader(smollm2_gguf)
    metadata = {k: f.contents() for k, f in reader.fields.items() if "tokenizer" not in k}
    shapes = {t.name: tuple(int(n) for n in t.shape) for t in reader.tensors}
    config = config_from_gguf(metadata, shapes, smollm2_gguf.name)
    spec = build_spec(config, where=smollm2_gguf.name, name="smollm2")
    assert spec.params == 134_515_008
    assert spec.tie_word_embeddings
    assert {t.name: t.ne for t in gguf_tensors(spec)} == shapes


# ---- bad headers ---------------------------------------------------------------------------------


def test_an_unknown_architecture_is_refused_with_the_list(converted: Facts) -> None:
    with pytest.raises(UnknownArchitectureError) as caught:
        config_from_gguf({"general.architecture": "mamba"}, {}, "model.gguf")
    assert caught.value.what == "GGUF architecture 'mamba' is not one gateup knows"
    assert caught.value.where == "model.gguf"
    for arch in ("llama", "qwen3moe", "deepseek2", "gpt-oss", "deci"):
        assert f" {arch}," in f" {caught.value.expected},"


MISTAKES = [
    ("llama", {"block_count": None}, "llama.block_count is missing"),
    ("llama", {"block_count": "32"}, "llama.block_count is '32'"),
    ("llama", {"block_count": 1 << 40}, "llama.block_count is 1099511627776"),
    ("llama", {"embedding_length": None}, "llama.embedding_length is missing"),
    ("llama", {"embedding_length": -1}, "llama.embedding_length is -1"),
    ("llama", {"feed_forward_length": None}, "llama.feed_forward_length is missing"),
    ("llama", {"attention__head_count": True}, "llama.attention.head_count is True"),
    ("llama", {"rope__freq_base": float("nan")}, "llama.rope.freq_base is nan"),
    (
        "llama",
        {"attention__head_count_kv": [2, 2]},
        "llama.attention.head_count_kv is [2, 2]",
    ),
    (
        "llama",
        {"attention__head_count_kv": [2, "2", 2]},
        "llama.attention.head_count_kv[1] is '2'",
    ),
    (
        "llama",
        {"feed_forward_length": [96, 96, 80]},
        "llama.feed_forward_length differs between layers: 96 in layer 0, 80 in a later one",
    ),
    ("mixtral", {"expert_used_count": None}, "llama.expert_used_count is missing"),
    ("mixtral", {"expert_count": 2.5}, "llama.expert_count is 2.5"),
    ("deepseek_v3", {"expert_weights_norm": 1}, "deepseek2.expert_weights_norm is 1"),
    ("deepseek_v3", {"attention__kv_lora_rank": None}, "deepseek2.attention.kv_lora_rank is"),
    (
        "deepseek_v3",
        {"attention__value_length_mla": None},
        "deepseek2.attention.value_length_mla is missing",
    ),
    ("deepseek_v3", {"rope__dimension_count": 20}, "deepseek2.rope.dimension_count is 20"),
    (
        "gpt_oss",
        {"attention__sliding_window_pattern": [True]},
        "gpt-oss.attention.sliding_window_pattern is [True]",
    ),
]


@pytest.mark.parametrize(("name", "changes", "what"), MISTAKES, ids=[m[2] for m in MISTAKES])
def test_mistakes_are_named_by_their_key(
    converted: Facts, name: str, changes: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(converted[name], **changes)
    assert caught.value.what.startswith(what)
    assert "model.gguf" in (caught.value.where or "") or "metadata" in (caught.value.where or "")
    assert caught.value.expected


def test_a_header_without_an_architecture(converted: Facts) -> None:
    for metadata in ({}, {"general.architecture": 3}):
        with pytest.raises(ConfigError, match=r"general\.architecture"):
            config_from_gguf(metadata, {}, "model.gguf")


def test_neither_embedding_nor_vocabulary(converted: Facts) -> None:
    model = copy.deepcopy(converted["qwen2"])
    del model["tensors"]["token_embd.weight"]
    model["metadata"].pop("qwen2.vocab_size", None)
    with pytest.raises(ConfigError, match=r"token_embd\.weight is missing"):
        read(model)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 12),
    st.integers(-(1 << 66), 1 << 66),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.one_of(st.integers(-1, 5), st.text(max_size=2)), max_size=5),
)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_header_escapes_as_another_error(converted: Facts, data: st.DataObject) -> None:
    model = converted[data.draw(st.sampled_from(sorted(converted)))]
    metadata, shapes = dict(model["metadata"]), shapes_of(model)
    for key in data.draw(st.lists(st.sampled_from(sorted(metadata)), min_size=1, max_size=3)):
        metadata[key] = data.draw(VALUES)
    for name in data.draw(st.lists(st.sampled_from(sorted(shapes)), max_size=2)):
        shapes[name] = tuple(data.draw(st.lists(st.integers(1, 99), max_size=4)))
    try:
        config = config_from_gguf(metadata, shapes, "model.gguf")
        spec = build_spec(config, where="model.gguf", name="m")
        assert sum(t.params for t in gguf_tensors(spec)) <= spec.params
    except GateupError:
        pass
