"""Qwen2-MoE and Qwen3-MoE: which layers are sparse, the shared expert, windows."""

from __future__ import annotations

from typing import Any

import pytest

from gateup.errors import UnknownArchitectureError
from gateup.model.families import build_spec, gguf_tensors
from gateup.model.spec import GatedMLPSpec, MoESpec


def build(converted: dict[str, Any], name: str, **changes: Any) -> Any:
    return build_spec(converted[name]["config"] | changes, where="config.json", name="tiny")


def sparse(spec: Any) -> list[bool]:
    return [isinstance(layer.mlp, MoESpec) for layer in spec.layers]


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({}, [True] * 6),
        ({"decoder_sparse_step": 2}, [False, True] * 3),
        ({"decoder_sparse_step": 3}, [False, False, True] * 2),
        ({"mlp_only_layers": [0, 5]}, [False, True, True, True, True, False]),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, [False] * 3 + [True, False, True]),
        ({"mlp_only_layers": [40]}, [True] * 6),
    ],
)
def test_which_layers_are_sparse(
    converted: dict[str, Any], changes: dict[str, Any], pattern: list[bool]
) -> None:
    spec = build(converted, "qwen3_moe", num_hidden_layers=6, **changes)
    assert sparse(spec) == pattern
    dense = [x.mlp for x in spec.layers if isinstance(x.mlp, GatedMLPSpec)]
    assert {x.intermediate_size for x in dense} <= {96}


def test_the_unused_dense_width_may_be_missing(converted: dict[str, Any]) -> None:
    assert sparse(build(converted, "qwen3_moe", intermediate_size=None)) == [True] * 3


def test_the_shared_expert_has_a_gate_of_one_row(converted: dict[str, Any]) -> None:
    spec = build(converted, "qwen2_moe")
    moe = spec.layers[0].mlp
    assert (moe.shared.intermediate_size, moe.shared_gate) == (48, True)
    assert moe.active_width == 2 * 40 + 48
    shapes = {n: r.shape for n, r in spec.tensors()}
    assert shapes["model.layers.0.mlp.shared_expert_gate.weight"] == (1, 64)
    assert shapes["model.layers.0.mlp.shared_expert.down_proj.weight"] == (64, 48)


def test_llama_cpp_has_no_dense_layers_here(converted: dict[str, Any]) -> None:
    with pytest.raises(UnknownArchitectureError) as caught:
        gguf_tensors(build(converted, "qwen3_moe", mlp_only_layers=[1]))
    assert caught.value.what == (
        "layer 1 has a dense MLP, which llama.cpp cannot hold in a Qwen MoE model"
    )


@pytest.mark.parametrize("name", ["qwen2_moe", "qwen3_moe"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sliding_window": 16},
        {"use_sliding_window": True, "sliding_window": 16},
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
        {"use_sliding_window": True},
    ],
)
def test_windows_are_those_of_the_class(
    converted: dict[str, Any], name: str, changes: dict[str, Any]
) -> None:
    import transformers

    config = converted[name]["config"] | changes
    cls = getattr(transformers, config["architectures"][0])
    theirs = cls.config_class.from_dict({k: v for k, v in config.items() if k != "architectures"})
    if name == "qwen2_moe":
        kinds = theirs.layer_types
        expected = [theirs.sliding_window if k == "sliding_attention" else None for k in kinds]
    else:
        expected = [theirs.sliding_window] * theirs.num_hidden_layers
    spec = build(converted, name, **changes)
    assert [x.attention.window for x in spec.layers] == expected
