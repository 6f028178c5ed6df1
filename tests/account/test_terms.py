"""Formulas from rows: letters chosen by the part, like layers together, per-layer widths summed."""

from __future__ import annotations

from dataclasses import replace

from gateup.account.terms import Sum, part_terms
from gateup.model.spec import (
    AttentionSpec,
    GatedMLPSpec,
    LayerSpec,
    ModelSpec,
    MoESpec,
    Part,
    TensorSpec,
)


def matrix(role: str, shape: tuple[int, ...], part: Part, layer: int | None) -> TensorSpec:
    return TensorSpec(f"{layer}.{role}", shape, part, role, layer)


def model(layers: tuple[LayerSpec, ...], rows: list[TensorSpec]) -> ModelSpec:
    return ModelSpec("llama", "LlamaForCausalLM", "small", 8, 100, False, layers, tuple(rows))


ATTENTION = AttentionSpec(2, 1, 4, 4)


def widths(*sizes: int) -> ModelSpec:
    layers, rows = [], []
    for i, size in enumerate(sizes):
        layers.append(LayerSpec(i, ATTENTION, GatedMLPSpec(size)))
        rows += [
            matrix("gate_proj", (size, 8), "mlp", i),
            matrix("up_proj", (size, 8), "mlp", i),
            matrix("down_proj", (8, size), "mlp", i),
        ]
    return model(tuple(layers), rows)


def test_like_layers_are_multiplied() -> None:
    assert part_terms(widths(20, 20), ("mlp",)) == Sum("3·H·I·L", "3·8·20·2", 960)


def test_a_width_per_layer_is_a_sum() -> None:
    terms = part_terms(widths(20, 30, 20), ("mlp",))
    assert terms == Sum("Σ_layers (3·H·I)", "3·8·20·2 + 3·8·30·1", 1680)


def test_layers_without_the_part_do_not_count() -> None:
    spec = widths(20, 30, 20)
    spec = replace(spec, rows=tuple(r for r in spec.rows if r.layer != 1))
    assert part_terms(spec, ("mlp",)) == Sum("3·H·I·2", "3·8·20·2", 960)


def test_nothing_is_zero() -> None:
    assert part_terms(widths(20), ("head",)) == Sum("0", "0", 0)


def test_letters_follow_the_part() -> None:
    """8 is H, n_h·d and, in a norm over a head of 4, never mistaken for n_kv·d."""
    layers = (LayerSpec(0, ATTENTION, None),)
    rows = [
        matrix("q_proj", (8, 8), "attention", 0),
        matrix("q_proj.bias", (8,), "attention", 0),
        matrix("k_proj", (4, 8), "attention", 0),
        matrix("o_proj.bias", (8,), "attention", 0),
    ]
    terms = part_terms(model(layers, rows), ("attention",))
    assert terms.letters == "(H·n_h·d + n_h·d + H·n_kv·d + H)·L"
    norms = [matrix("q_norm", (4,), "norm", 0), matrix("norm", (8,), "norm", None)]
    assert part_terms(model(layers, norms), ("norm",)).letters == "d·L + H"


def test_stacked_and_single_experts_read_alike() -> None:
    layers = (LayerSpec(0, None, MoESpec(6, 2, GatedMLPSpec(20))),)
    single = TensorSpec("{e}", (20, 8), "mlp", "experts.up_proj", 0, 6, 6, 2)
    stacked = TensorSpec("all", (6, 20, 8), "mlp", "experts.up_proj", 0, 1, 6, 2)
    for row in (single, stacked):
        spec = model(layers, [row])
        assert part_terms(spec, ("mlp",)) == Sum("E·H·I_e·L", "6·8·20·1", 960)
        assert part_terms(spec, ("mlp",), active=True) == Sum("k·H·I_e·L", "2·8·20·1", 320)


def test_select_rows() -> None:
    terms = part_terms(widths(20), ("mlp",), select=lambda row: row.role == "down_proj")
    assert terms == Sum("H·I·L", "8·20·1", 160)
