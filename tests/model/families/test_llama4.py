"""Llama 4: dense and sparse layers of two widths, chunks, the text model inside a vision one."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gateup.model.families import build_spec, gguf_tensors
from gateup.model.spec import MoESpec


def build(config: dict[str, Any], **changes: Any) -> Any:
    return build_spec({**config, **changes}, where="config.json", name="tiny")


@pytest.fixture
def text(converted: dict[str, Any]) -> dict[str, Any]:
    return dict(converted["llama4_text"]["config"])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"interleave_moe_layer_step": 1},
        {"interleave_moe_layer_step": 3},
        {"moe_layers": [1, 2]},
        {"moe_layers": []},
        {"no_rope_layers": [0, 1, 1, 0]},
        {"no_rope_layer_interval": 2},
        {"attention_chunk_size": None},
        {"attention_chunk_size": 64, "layer_types": ["full_attention", "chunked_attention"] * 2},
    ],
)
def test_sparse_layers_and_chunks_are_those_of_the_class(
    text: dict[str, Any], changes: dict[str, Any]
) -> None:
    import transformers

    config = {**text, **changes}
    theirs = transformers.Llama4TextConfig.from_dict(
        {k: v for k, v in config.items() if k != "architectures"}
    )
    spec = build(config)
    sparse = [x.index for x in spec.layers if isinstance(x.mlp, MoESpec)]
    assert sparse == [i for i in theirs.moe_layers if i < 4]
    windows = [
        theirs.attention_chunk_size if k == "chunked_attention" else None
        for k in theirs.layer_types
    ]
    assert [x.attention.window for x in spec.layers] == windows
    assert [x.attention.chunked for x in spec.layers] == [w is not None for w in windows]


def test_the_chunk_size_may_be_left_out(text: dict[str, Any]) -> None:
    del text["attention_chunk_size"]
    assert build(text).layers[0].attention.window == 8192


def test_widths_differ_between_dense_and_sparse_layers(text: dict[str, Any]) -> None:
    layers = build(text).layers
    assert layers[0].mlp.intermediate_size == 80
    assert layers[1].mlp.expert.intermediate_size == 96
    assert layers[1].mlp.shared.intermediate_size == 96


def test_experts_are_stacked_input_major_gate_first(text: dict[str, Any]) -> None:
    spec = build(text)
    shapes = {n: r.shape for n, r in spec.tensors()}
    block = "model.layers.1.feed_forward."
    assert shapes[block + "experts.gate_up_proj"] == (5, 64, 192)
    assert shapes[block + "experts.down_proj"] == (5, 96, 64)
    layout = spec.layers[1].mlp.expert.layout
    assert (layout.form, layout.order, layout.orientation, layout.stacked) == (
        "concat",
        "gate_up",
        "in_out",
        True,
    )
    assert not any("norm" in n and "self_attn" in n for n in shapes)  # qk norm has no weights


def test_the_multimodal_file_has_the_same_model_under_a_prefix(converted: dict[str, Any]) -> None:
    config = copy.deepcopy(converted["llama4"]["config"])
    spec = build(config)
    alone = build(config["text_config"])
    assert {n.removeprefix("language_model."): r.shape for n, r in spec.tensors()} == {
        n: r.shape for n, r in alone.tensors()
    }
    assert all(n.startswith("language_model.") for n, _ in spec.tensors())
    assert {t.name: t.ne for t in gguf_tensors(spec)} == {t.name: t.ne for t in gguf_tensors(alone)}


def test_outer_settings_reach_the_text_model(converted: dict[str, Any]) -> None:
    config = copy.deepcopy(converted["llama4"]["config"])
    inner = config["text_config"]
    del inner["torch_dtype"], inner["tie_word_embeddings"]
    spec = build(config, torch_dtype="bfloat16", tie_word_embeddings=True)
    assert spec.dtype == "bf16"
    assert spec.tie_word_embeddings
    inner["rope_scaling"] = {"rope_type": "llama3"}
    assert "rope_freqs.weight" in {t.name for t in gguf_tensors(build(config))}
