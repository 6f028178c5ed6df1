"""The ledger: rows sum to totals, shares are the known ones, formulas evaluate to their values."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateup.account.figure import Figure
from gateup.account.ledger import (
    LEDGER_PARTS,
    Ledger,
    Totals,
    layer_label,
    make_ledger,
    tied_head,
)
from gateup.files.checkpoint import open_model
from gateup.model.families import build_spec
from gateup.model.presets import PRESETS
from gateup.model.presets import spec as preset_spec
from gateup.model.quant.formats import StoredTensor, stored_as
from gateup.model.quant.mix import stored
from gateup.model.spec import ModelSpec

FIELDS = ("params", "active_params", "nbytes", "active_nbytes", "flops")


def evaluate(numbers: str) -> Fraction:
    """What a figure's `numbers` come to, in exact arithmetic."""
    text = numbers.replace("·", "*").replace("−", "-")
    assert re.fullmatch(r"[\d\s*+\-/()]+", text), numbers
    return Fraction(eval(re.sub(r"\d+", r"Fraction(\g<0>)", text), {"Fraction": Fraction}))


def check_figure(key: str, figure: Figure) -> None:
    """The numbers put into the formula give the value, and every field is filled."""
    value = evaluate(figure.numbers)
    if isinstance(figure.value, int):
        assert value == figure.value, (key, figure)
    else:
        assert float(value) == pytest.approx(figure.value, rel=1e-12), (key, figure)
    assert figure.formula, key
    assert figure.source, key
    assert figure.unit, key


def known(models: dict[str, dict[str, Any]], name: str, **changes: Any) -> ModelSpec:
    entry = {**models[name], **changes}
    return build_spec({**entry, "architectures": [entry["architecture"]]}, where=name, name=name)


def ledger(spec: ModelSpec, dtype: str = "bf16") -> Ledger:
    return make_ledger(spec, stored_as(spec.rows, dtype), dtype)


def llama(**changes: Any) -> ModelSpec:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 300,
        "tie_word_embeddings": False,
        **changes,
    }
    return build_spec(config, where="test", name="small")


def moe(layers: int, experts: int, k: int, width: int) -> ModelSpec:
    config = {
        "architectures": ["MixtralForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 300,
        "num_local_experts": experts,
        "num_experts_per_tok": k,
        "tie_word_embeddings": False,
    }
    return build_spec(config, where="test", name="small moe")


def deepseek(layers: int = 3, q_rank: int | None = 24) -> ModelSpec:
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 160,
        "moe_intermediate_size": 32,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "q_lora_rank": q_rank,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "vocab_size": 300,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "tie_word_embeddings": False,
    }
    return build_spec(config, where="test", name="small mla")


specs = st.one_of(
    st.builds(
        llama,
        hidden_size=st.sampled_from([32, 64, 96]),
        intermediate_size=st.integers(1, 400),
        num_hidden_layers=st.integers(1, 5),
        num_key_value_heads=st.sampled_from([1, 2, 4]),
        head_dim=st.sampled_from([8, 16, 24]),
        vocab_size=st.integers(1, 999),
        tie_word_embeddings=st.booleans(),
        mlp_bias=st.booleans(),
        attention_bias=st.booleans(),
    ),
    st.builds(
        moe,
        layers=st.integers(1, 4),
        experts=st.integers(2, 9),
        k=st.integers(1, 2),
        width=st.integers(1, 99),
    ),
    st.builds(deepseek, layers=st.integers(1, 4), q_rank=st.sampled_from([None, 24])),
)


def add(totals: list[Totals]) -> Totals:
    return Totals(*(sum(getattr(t, f) for t in totals) for f in FIELDS))


@settings(deadline=None, max_examples=60)
@given(spec=specs, dtype=st.sampled_from(["bf16", "f32", "f8_e4m3"]))
def test_rows_parts_layers_and_modules_sum_to_the_total(spec: ModelSpec, dtype: str) -> None:
    book = ledger(spec, dtype)
    total = book.total
    assert add(list(book.by_part().values())) == total
    assert add([t for parts in book.by_layer().values() for t in parts.values()]) == total
    assert add(list(book.by_module().values())) == total
    assert sum(t.nbytes for t in book.by_type().values()) == total.nbytes

    assert total.params == spec.params
    assert total.active_params == spec.active_params
    width = {"bf16": 2, "f32": 4, "f8_e4m3": 1}[dtype]
    assert total.nbytes == width * spec.params
    head = 2 * spec.vocab_size * spec.hidden_size if tied_head(spec) else 0
    assert total.flops == head + sum(2 * r.active_params for r in spec.rows if r.matmul)


@settings(deadline=None, max_examples=60)
@given(spec=specs)
def test_formulas_evaluate_to_their_values(spec: ModelSpec) -> None:
    figures = ledger(spec).figures()
    for key, figure in figures.items():
        check_figure(key, figure)
        assert figure.kind == "exact"
        assert "tensor headers" not in figure.source, key  # no fallback for a complete model
    parts = sum(figures[f"params.{p}"].value for p in LEDGER_PARTS if p != "other")
    assert parts == figures["params.total"].value == spec.params
    assert sum(figures[f"bytes.{p}"].value for p in LEDGER_PARTS) == figures["bytes.total"].value


def test_formula_has_letters_and_numbers() -> None:
    figures = ledger(
        llama(
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            vocab_size=128256,
        )
    ).figures()
    assert figures["params.mlp"] == Figure(
        5_637_144_576,
        "params",
        "exact",
        "3·H·I·L",
        "3·4096·14336·32",
        figures["params.mlp"].source,
    )
    assert figures["params.attention"].formula == "(2·H·n_h·d + 2·H·n_kv·d)·L"
    assert figures["params.embedding"].numbers == "128256·4096"
    assert figures["flops.mlp"].formula == "2·(3·H·I·L)"
    assert figures["bytes.mlp"].numbers == "5637144576·2"


def test_formula_of_experts_and_of_several_kinds_of_layers() -> None:
    figures = ledger(deepseek()).figures()
    assert figures["params.mlp"].formula == "3·H·I·1 + (H·E + 3·E·H·I_e + 3·H·I_s + E)·2"
    assert figures["params.mlp"].numbers == "3·64·160·1 + (64·8 + 3·8·64·32 + 3·64·32 + 8)·2"
    assert figures["flops.mlp"].formula == "2·(3·H·I·1 + (H·E + 3·k·H·I_e + 3·H·I_s)·2)"
    assert "layers.0-0.params.mlp_share" not in figures
    assert {"layers.0.params.mlp_share", "layers.1-2.params.mlp_share"} <= set(figures)


# Share of the model's parameters, of a layer's: FACTS known to a tenth of a percent.
@pytest.mark.parametrize(
    ("name", "model", "layer"),
    [
        ("meta-llama/Llama-2-7b-hf", 64.2, 66.8),
        ("meta-llama/Llama-2-70b-hf", 81.7, None),
        ("meta-llama/Llama-3.1-8B", 70.2, 80.8),
        ("Qwen/Qwen3-0.6B", 44.3, 60.0),
    ],
)
def test_known_shares(
    known_models: dict[str, dict[str, Any]], name: str, model: float, layer: float | None
) -> None:
    spec = known(known_models, name)
    figures = ledger(spec).figures()
    assert round(100 * figures["params.mlp_share"].value, 1) == model
    if layer is not None:
        key = f"layers.0-{spec.num_layers - 1}.params.mlp_share"
        assert round(100 * figures[key].value, 1) == layer


def test_known_counts(known_models: dict[str, dict[str, Any]]) -> None:
    mlp = {
        "meta-llama/Llama-2-70b-hf": 56_371_445_760,
        "meta-llama/Llama-3.1-8B": 5_637_144_576,
    }
    for name, params in mlp.items():
        assert ledger(known(known_models, name)).by_part()["mlp"].params == params


def test_grouped_queries_raise_the_mlps_share(known_models: dict[str, dict[str, Any]]) -> None:
    """Qwen3-0.6B: 60.0% of a layer with 8 KV heads, 52.9% with as many as query heads."""
    shares = {}
    for heads in (8, 16):
        spec = known(known_models, "Qwen/Qwen3-0.6B", num_key_value_heads=heads)
        share = ledger(spec).figures()["layers.0-27.params.mlp_share"].value
        shares[heads] = round(100 * share, 1)
    assert shares == {8: 60.0, 16: 52.9}


def test_gate_activation_of_one_layer() -> None:
    """One gate output at T=2048, I=14336 in fp16 is 58.7 MB, not 117."""
    assert round(2048 * 14336 * 2 / 1e6, 1) == 58.7


def test_all_known_totals(known_models: dict[str, dict[str, Any]]) -> None:
    checked = 0
    for name, entry in known_models.items():
        if "num_local_experts" in entry or "text" in name:
            continue
        if entry["architecture"] not in ("LlamaForCausalLM", "Qwen3ForCausalLM"):
            continue
        assert ledger(known(known_models, name)).total.params == entry["total_params_computed"]
        checked += 1
    assert checked >= 7


def test_active_parameters_and_bytes(known_models: dict[str, dict[str, Any]]) -> None:
    for name in ("mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-30B-A3B"):
        total = ledger(known(known_models, name)).total
        entry = known_models[name]
        assert total.params == entry["total_params_computed"]
        assert total.active_params == entry["active_params_computed"]
        # all active weights in two bytes, but of the embedding one row
        lookup = entry["vocab_size"] * entry["hidden_size"]
        expected = 2 * (total.active_params - lookup + entry["hidden_size"])
        assert total.active_nbytes == expected


def test_tied_head_multiplies_without_parameters() -> None:
    tied, untied = llama(tie_word_embeddings=True), llama()
    book, other = ledger(tied), ledger(untied)
    head = book.by_part()["head"]
    assert head == Totals(0, 0, 0, 2 * 300 * 64, 2 * 300 * 64)
    assert book.total.flops == other.total.flops
    assert book.total.active_nbytes == other.total.active_nbytes
    assert book.total.params == other.total.params - 300 * 64
    assert book.figures()["flops.head"].formula == "2·(V·H)"
    assert book.rows[-1].name == "lm_head (tied to model.embed_tokens.weight)"
    assert book.rows[-1].shape == (300, 64)


def test_an_embedding_lookup_costs_no_flops_and_reads_one_row() -> None:
    part = ledger(llama()).by_part()["embedding"]
    assert part.flops == 0
    assert part.active_nbytes == 2 * 64


def test_a_dropped_gate_changes_every_figure() -> None:
    spec = llama()
    without = replace(spec, rows=tuple(r for r in spec.rows if r.role != "gate_proj"))
    full, less = ledger(spec).by_part()["mlp"], ledger(without).by_part()["mlp"]
    assert full.params == 3 * less.params // 2
    assert full.flops == 3 * less.flops // 2
    assert full.nbytes == 3 * less.nbytes // 2


def test_tensors_outside_the_spec_count_as_bytes_only() -> None:
    spec = llama()
    extra = StoredTensor("rope_freqs.weight", (32,), "f32", 128, 0, None)
    book = make_ledger(spec, (*stored_as(spec.rows, "bf16"), extra), "bf16")
    assert book.by_part()["other"] == Totals(0, 0, 128, 128, 0)
    assert book.total.params == spec.params
    assert book.total.nbytes == 2 * spec.params + 128
    figures = book.figures()
    assert figures["bytes.other"].value == 128
    assert figures["bytes.total"].formula == "elements(bf16)·2 + elements(f32)·4"
    check_figure("bytes.total", figures["bytes.total"])


def test_several_stored_tensors_per_row_and_unknown_types() -> None:
    """A row stored in halves, one of them in a format that has no block size here."""
    spec = llama()
    row = next(r for r in spec.rows if r.role == "gate_proj")
    rest = [t for t in stored_as(spec.rows, "bf16") if t.row is not row]
    half = row.params // 2
    halves = [
        StoredTensor("a", (80, 64), "q8_0", half // 32 * 34, half, row),
        StoredTensor("b", (80, 64), "nf4", half // 2, half, row),
    ]
    book = make_ledger(spec, [*rest, *halves], "mix")
    assert book.total.params == spec.params
    assert book.total.flops == ledger(spec).total.flops
    for key, figure in book.figures().items():
        check_figure(key, figure)
    assert book.figures()["bytes.mlp"].formula == (
        "elements(bf16)·2 + elements(q8_0)·34/32 + bytes(nf4)"
    )
    assert book.by_type()["nf4"].nbytes == half // 2


def test_a_missing_tensor_shows_as_a_sum_of_what_is_stored() -> None:
    spec = llama()
    partial = [t for t in stored_as(spec.rows, "bf16") if "layers.1.mlp.up_proj" not in t.name]
    figures = make_ledger(spec, partial, "partial").figures()
    assert figures["params.mlp"].formula == "sum of the stored tensors"
    assert figures["params.mlp"].value == 8 * 64 * 160
    assert "layers.0,2.params.mlp_share" in figures
    assert "layers.1.params.mlp_share" in figures


def test_one_module_is_weight_and_bias() -> None:
    modules = ledger(llama(mlp_bias=True)).by_module()
    assert modules["gate_proj"].params == 3 * (160 * 64 + 160)
    assert "gate_proj.bias" not in modules


def test_a_real_file(smollm2_gguf: Path) -> None:
    """SmolLM2's Q4_1 file: 272 tensors, 134,515,008 parameters, tied head."""
    checkpoint = open_model(smollm2_gguf)
    assert checkpoint.stored is not None
    book = make_ledger(checkpoint.spec, checkpoint.stored, checkpoint.label)
    assert book.total.params == 134_515_008
    assert len(book.rows) == 272 + 1
    assert book.total.nbytes < smollm2_gguf.stat().st_size == 98_362_432
    for key, figure in book.figures().items():
        check_figure(key, figure)


def test_a_type_mix(known_models: dict[str, dict[str, Any]]) -> None:
    """Q4_K_M of Llama-3-8B is 4,912,898,048 bytes, 30.6% of fp16's."""
    spec = known(known_models, "meta-llama/Llama-3.1-8B")
    book = make_ledger(spec, stored(spec, "q4_k_m"), "q4_k_m")
    assert book.by_type()["q6_k"].nbytes
    assert book.total.nbytes - book.by_part()["other"].nbytes == 4_912_898_048
    assert round(100 * 4_912_898_048 / (2 * spec.params), 1) == 30.6
    assert book.total.flops == ledger(spec).total.flops
    for key, figure in book.figures().items():
        check_figure(key, figure)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_known_model_in_letters_and_numbers(name: str) -> None:
    spec = preset_spec(name)
    for key, figure in ledger(spec).figures().items():
        check_figure(key, figure)
        assert figure.formula != "sum of the stored tensors", key


@pytest.mark.parametrize(
    ("layers", "label"),
    [
        ([0], "0"),
        ([0, 1], "0-1"),
        (list(range(32)), "0-31"),
        ([0, 2, 4], "0-4:2"),
        ([5, 11, 17], "5-17:6"),
        ([0, 2], "0,2"),
        ([0, 3, 4, 5], "0,3-5"),
    ],
)
def test_layer_label(layers: list[int], label: str) -> None:
    assert layer_label(layers) == label
