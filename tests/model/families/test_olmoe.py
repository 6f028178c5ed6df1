"""OLMoE: norms over all heads' queries and keys."""

from __future__ import annotations

from typing import Any

from gateup.model.families import build_spec, gguf_tensors


def test_query_and_key_norms_span_all_heads(converted: dict[str, Any]) -> None:
    config = converted["olmoe"]["config"] | {"num_key_value_heads": 2}
    spec = build_spec(config, where="config.json", name="tiny")
    shapes = {n: r.shape for n, r in spec.tensors()}
    assert shapes["model.layers.0.self_attn.q_norm.weight"] == (64,)
    assert shapes["model.layers.0.self_attn.k_norm.weight"] == (32,)
    ne = {t.name: t.ne for t in gguf_tensors(spec)}
    assert ne["blk.2.attn_k_norm.weight"] == (32,)
    assert ne["blk.2.ffn_up_exps.weight"] == (64, 96, 6)


def test_experts_have_the_config_s_intermediate_size(converted: dict[str, Any]) -> None:
    spec = build_spec(converted["olmoe"]["config"], where="config.json", name="tiny")
    assert {x.mlp.expert.intermediate_size for x in spec.layers if x.mlp} == {96}
    assert {x.mlp.active_width for x in spec.layers if x.mlp} == {2 * 96}
