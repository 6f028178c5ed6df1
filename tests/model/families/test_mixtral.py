"""Mixtral: w1, w3, w2 on the Hub; Mistral's own names; llama.cpp's merged experts."""

from __future__ import annotations

from typing import Any

import pytest

from gateup.model.families import build_spec, gguf_tensors
from gateup.model.families.names import NameIndex, translate


@pytest.fixture
def spec(converted: dict[str, Any]) -> Any:
    return build_spec(converted["mixtral"]["config"], where="config.json", name="tiny")


def test_gate_is_w1_up_is_w3_down_is_w2(spec: Any) -> None:
    roles = {name: row.role for name, row in spec.tensors()}
    block = "model.layers.2.block_sparse_moe."
    assert roles[block + "gate.weight"] == "router"
    assert roles[block + "experts.5.w1.weight"] == "experts.gate_proj"
    assert roles[block + "experts.5.w3.weight"] == "experts.up_proj"
    assert roles[block + "experts.5.w2.weight"] == "experts.down_proj"
    assert block + "experts.6.w1.weight" not in roles


def test_names_in_the_other_dialects(spec: Any) -> None:
    meta = translate(spec, "meta")
    assert meta["layers.0.feed_forward.experts.3.w1.weight"][0].role == "experts.gate_proj"
    assert meta["layers.0.feed_forward.gate.weight"][0].role == "router"
    megatron = translate(spec, "megatron")
    fused = megatron["decoder.layers.1.mlp.experts.local_experts.3.linear_fc1.weight"]
    assert [row.role for row in fused] == ["experts.gate_proj", "experts.up_proj"]
    index = NameIndex(spec, "hf")
    assert index.canonical("model.layers.0.block_sparse_moe.experts.5.w2.weight")
    assert index.canonical("model.layers.0.block_sparse_moe.experts.6.w2.weight") is None


def test_experts_are_one_tensor_in_a_gguf(spec: Any) -> None:
    ne = {t.name: t.ne for t in gguf_tensors(spec)}
    assert ne["blk.0.ffn_gate_exps.weight"] == (64, 96, 6)
    assert ne["blk.0.ffn_down_exps.weight"] == (96, 64, 6)
    assert ne["blk.0.ffn_gate_inp.weight"] == (64, 6)


@pytest.mark.parametrize(("window", "seen"), [(None, None), (16, 16)])
def test_a_window_covers_every_layer(
    converted: dict[str, Any], window: int | None, seen: int | None
) -> None:
    config = converted["mixtral"]["config"] | {"sliding_window": window}
    spec = build_spec(config, where="config.json", name="tiny")
    assert [x.attention.window for x in spec.layers if x.attention] == [seen] * 3
