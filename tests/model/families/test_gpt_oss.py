"""gpt-oss: packed pieces, interleaved stacks, windows, sinks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateup.errors import ConfigError
from gateup.model.families import build_spec, gguf_tensors
from gateup.model.families.gpt_oss import LAYOUT, companion, companion_shape


def build(converted: dict[str, Any], **changes: Any) -> Any:
    return build_spec(converted["gpt_oss"]["config"] | changes, where="config.json", name="tiny")


@pytest.mark.parametrize("tensor", ["gate_up_proj", "down_proj"])
def test_packed_pieces_map_to_the_logical_tensor(converted: dict[str, Any], tensor: str) -> None:
    canonical = f"model.layers.3.mlp.experts.{tensor}"
    names = dict(build(converted).tensors())
    for suffix, nbytes in (("_blocks", 16), ("_scales", 1)):
        found = companion(canonical + suffix)
        assert found == (canonical, nbytes)
        assert canonical in names
    assert companion(canonical) is None
    assert companion(canonical + "_bias") is None
    assert companion("model.layers.3.self_attn.q_proj_blocks") is None


def test_shapes_of_the_packed_pieces() -> None:
    """gpt-oss-20b's file: gate_up [32, 5760, 90, 16] and [32, 5760, 90], 17 bytes per 32."""
    logical = (32, 2880, 5760)  # [E, H, 2I]
    assert companion_shape("_blocks", logical) == (32, 5760, 90, 16)
    assert companion_shape("_scales", logical) == (32, 5760, 90)
    with pytest.raises(ConfigError) as caught:
        companion_shape("_blocks", (2, 40, 8))
    assert caught.value.what == "input width 40 is not a multiple of 32"


def test_windows_alternate_windowed_first_as_in_the_class(converted: dict[str, Any]) -> None:
    import transformers

    config = {k: v for k, v in converted["gpt_oss"]["config"].items() if k != "architectures"}
    theirs = transformers.GptOssConfig.from_dict(config)
    expected = [128 if k == "sliding_attention" else None for k in theirs.layer_types]
    assert expected == [128, None, 128, None]
    assert [x.attention.window for x in build(converted).layers] == expected
    turned = build(converted, layer_types=["full_attention", "sliding_attention"] * 2)
    assert [x.attention.window for x in turned.layers] == [None, 128, None, 128]
    assert {x.attention.window for x in build(converted, sliding_window=None).layers} == {None}


def test_everything_has_a_bias_and_attention_has_sinks(converted: dict[str, Any]) -> None:
    shapes = {n: r.shape for n, r in build(converted).tensors()}
    at = "model.layers.0."
    assert shapes[at + "self_attn.sinks"] == (4,)
    assert shapes[at + "mlp.router.bias"] == (5,)
    assert shapes[at + "mlp.experts.gate_up_proj"] == (5, 64, 192)
    assert shapes[at + "mlp.experts.gate_up_proj_bias"] == (5, 192)
    assert shapes[at + "mlp.experts.down_proj_bias"] == (5, 64)


def test_the_layout_carries_the_activation_s_numbers(converted: dict[str, Any]) -> None:
    expert = build(converted).layers[0].mlp.expert
    assert expert.layout == LAYOUT
    assert expert.act == "gpt_oss"
    other = build(converted, swiglu_limit=5.0).layers[0].mlp.expert
    assert other.layout == replace(LAYOUT, clamp=5.0)


def test_a_gguf_holds_gate_and_up_apart(converted: dict[str, Any]) -> None:
    tensors = {t.name: t for t in gguf_tensors(build(converted))}
    gate, up = tensors["blk.0.ffn_gate_exps.weight"], tensors["blk.0.ffn_up_exps.weight"]
    assert gate.ne == up.ne == (64, 96, 5)
    assert gate.rows == up.rows
    assert gate.params + up.params == gate.rows[0].params
    assert tensors["blk.0.ffn_up_exps.bias"].ne == (96, 5)
    assert tensors["blk.0.attn_sinks.weight"].ne == (4,)
