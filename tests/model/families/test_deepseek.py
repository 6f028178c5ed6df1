"""DeepSeek-V2 and V3: latent attention, dense layers in front, the router's bias, MTP."""

from __future__ import annotations

from typing import Any

import pytest

from gateup.model.families import build_spec, gguf_tensors
from gateup.model.spec import GatedMLPSpec, MoESpec


def build(converted: dict[str, Any], name: str, **changes: Any) -> Any:
    return build_spec(converted[name]["config"] | changes, where="config.json", name="tiny")


def test_the_cache_holds_the_latent_and_one_rope_key(converted: dict[str, Any]) -> None:
    attention = build(converted, "deepseek_v3").layers[0].attention
    assert attention.kv_elements == 32 + 8
    assert (attention.head_dim, attention.v_head_dim) == (12 + 8, 20)
    assert attention.num_kv_heads == attention.num_heads == 4
    assert attention.mla.q_lora_rank == 28
    assert build(converted, "deepseek_v2").layers[0].attention.mla.q_lora_rank is None


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({}, "D" + "M" * 5),
        ({"first_k_dense_replace": 0}, "M" * 6),
        ({"first_k_dense_replace": 3}, "DDDMMM"),
        ({"moe_layer_freq": 2}, "DDMDMD"),
        ({"n_routed_experts": None}, "D" * 6),
    ],
)
def test_which_layers_are_sparse(
    converted: dict[str, Any], changes: dict[str, Any], pattern: str
) -> None:
    spec = build(converted, "deepseek_v3", num_hidden_layers=6, **changes)
    assert "".join("M" if isinstance(x.mlp, MoESpec) else "D" for x in spec.layers) == pattern
    if "D" in pattern:
        widths = {x.mlp.intermediate_size for x in spec.layers if isinstance(x.mlp, GatedMLPSpec)}
        assert widths == {96}


def test_shared_experts_are_one_mlp(converted: dict[str, Any]) -> None:
    moe = build(converted, "deepseek_v2").layers[1].mlp
    assert moe.shared.intermediate_size == 2 * 40
    assert moe.active_width == 3 * 40 + 2 * 40
    assert build(converted, "deepseek_v2", n_shared_experts=None).layers[1].mlp.shared is None


def test_only_v3_routers_have_a_correction_bias_and_it_is_a_buffer(
    converted: dict[str, Any],
) -> None:
    rows = [r for r in build(converted, "deepseek_v3").rows if r.buffer]
    assert [(r.name, r.shape) for r in rows] == [
        (f"model.layers.{i}.mlp.gate.e_score_correction_bias", (6,)) for i in (1, 2)
    ]
    assert not any(r.buffer for r in build(converted, "deepseek_v2").rows)


def test_layers_for_more_tokens_at_once_are_noted_not_counted(converted: dict[str, Any]) -> None:
    spec = build(converted, "deepseek_v3")
    plain = build(converted, "deepseek_v3", num_nextn_predict_layers=0)
    assert spec.params == plain.params
    assert plain.notes == ()
    assert spec.notes == (
        "multi-token prediction: the Hub file also holds layer 3, "
        "which plain decoding does not use; it is not counted",
    )
    two = build(converted, "deepseek_v3", num_nextn_predict_layers=2)
    assert "layer 3 to 4," in two.notes[0]


def test_kv_b_is_split_per_head_for_a_gguf(converted: dict[str, Any]) -> None:
    tensors = {t.name: t for t in gguf_tensors(build(converted, "deepseek_v2"))}
    k, v = tensors["blk.1.attn_k_b.weight"], tensors["blk.1.attn_v_b.weight"]
    assert k.ne == (12, 32, 4)  # [nope, latent, heads]
    assert v.ne == (32, 20, 4)  # [latent, v, heads]
    assert k.rows == v.rows
    assert k.params + v.params == k.rows[0].params
    assert "blk.1.attn_kv_b.weight" not in tensors
