"""Types per tensor against llama.cpp's own dry runs and files, and what depends on them."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from gateup.errors import UsageError
from gateup.model import presets
from gateup.model.families import GGUFTensor, build_spec
from gateup.model.quant import llamacpp, mix
from gateup.model.quant.formats import FORMATS
from gateup.model.quant.gguf_file import tensor_data_nbytes
from gateup.model.quant.llamacpp import (
    CONDITIONS,
    FILE_TYPES,
    RULE_SETS,
    RULES,
    RULES_BUILD,
    Category,
    more_bits,
)
from gateup.model.spec import ModelSpec

FACTS = Path(__file__).parents[2] / "facts"
GOLDEN = json.loads((FACTS / "type_mix.json").read_text())
MODELS = sorted(GOLDEN["models"])

# A dense model with and without GQA, 8 and 128 experts, 80 layers, rows that fit no block, tied.
TELLING = (
    "llama-2-7b",
    "llama-2-70b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "qwen2.5-0.5b",
    "odd row, no block fits",
)


def spec_of(name: str) -> ModelSpec:
    config = GOLDEN["models"].get(name, {}).get("config")
    return build_spec(config, where=name, name=name) if config else presets.spec(name)


def run_lengths(types: list[str]) -> str:
    runs = ((t, len(list(group))) for t, group in groupby(types))
    return " ".join(t if n == 1 else f"{t}*{n}" for t, n in runs)


def rows_of(spec: ModelSpec, file_type: str) -> dict[str, str]:
    """kind of tensor -> its types in layer order, as the golden data spells them."""
    out: dict[str, list[str]] = {}
    for tensor, type_ in mix.gguf_types(spec, file_type):
        out.setdefault(re.sub(r"^blk\.\d+\.", "blk.", tensor.name), []).append(type_)
    return {k: run_lengths(v) for k, v in out.items()}


def golden_rows(model: dict[str, Any], file_type: str) -> dict[str, str]:
    rows = (GOLDEN["rows"][i] for i in model["files"][file_type])
    return dict(zip(model["kinds"], rows, strict=True))


def differing() -> Iterator[tuple[str, str]]:
    """(model, file type) pairs whose types differ from llama.cpp's."""
    for name in TELLING:
        model, spec = GOLDEN["models"][name], spec_of(name)
        for t in model["files"]:
            if rows_of(spec, t) != golden_rows(model, t):
                yield name, t


def test_the_golden_data_is_of_the_build_the_rules_name() -> None:
    assert GOLDEN["build"] == RULES_BUILD
    assert len(MODELS) >= 80
    assert all(set(m["files"]) == set(FILE_TYPES) for m in GOLDEN["models"].values())


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_has_the_type_that_llama_cpp_gives_it(name: str) -> None:
    model, spec = GOLDEN["models"][name], spec_of(name)
    for file_type in model["files"]:
        assert rows_of(spec, file_type) == golden_rows(model, file_type), file_type


@pytest.mark.parametrize("written", GOLDEN["written"], ids=lambda w: f"{w['name']}, {w['file']}")
def test_files_written_by_llama_cpp_have_these_types_and_this_size(written: Any) -> None:
    spec = build_spec(written["config"], where="written", name=written["name"])
    assert rows_of(spec, written["file"]) == written["types"]
    assert tensor_data_nbytes(spec, written["file"]) == written["data_nbytes"]


# ---- the golden comparison can fail: rules taken away one at a time ------------------------------


def test_without_the_row_fallback_the_golden_data_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(differing())
    monkeypatch.setattr(mix._Chooser, "_fall_back", lambda self, type_, row: type_)
    assert ("qwen2.5-0.5b", "q4_k_m") in differing()


def test_the_older_fallback_is_another() -> None:
    spec = spec_of("qwen2.5-0.5b")
    now, then = (
        {t.name: type_ for t, type_ in mix.gguf_types(spec, "q2_k", rules=rules)}
        for rules in (RULE_SETS["current"], RULE_SETS["older"])
    )
    assert now["blk.0.attn_q.weight"] == "q4_0"
    assert then["blk.0.attn_q.weight"] == "iq4_nl"
    assert now["blk.0.ffn_down.weight"] == then["blk.0.ffn_down.weight"] == "q3_k"  # 4864 = 19·256


@pytest.mark.parametrize("condition", [c for c in CONDITIONS if "imatrix" not in c and c])
def test_every_condition_counts(monkeypatch: pytest.MonkeyPatch, condition: str) -> None:
    monkeypatch.setitem(llamacpp.CONDITIONS, condition, lambda s: False)
    assert any(differing())


SPECS = {name: spec_of(name) for name in TELLING}


@functools.cache
def unchanged(name: str, file_type: str, imatrix: bool) -> list[tuple[GGUFTensor, str]]:
    """What the whole table gives; asked before a test takes a rule out."""
    return mix.gguf_types(SPECS[name], file_type, imatrix=imatrix)


RULE_NAMES = [(kind, i) for kind, rules in RULES.items() for i in range(len(rules))]


@pytest.mark.parametrize(("kind", "i"), RULE_NAMES)
def test_every_rule_counts(monkeypatch: pytest.MonkeyPatch, kind: Category, i: int) -> None:
    """Taken out, a rule changes some answer (those that need an importance matrix, that one)."""
    rule = RULES[kind][i]
    imatrix = rule.when.endswith(", imatrix")
    files = sorted(rule.files or FILE_TYPES)
    pairs = [(n, t) for n in TELLING for t in files]
    before = {pair: unchanged(*pair, imatrix) for pair in pairs}
    monkeypatch.setitem(
        llamacpp.RULES,
        kind,
        RULES[kind][:i] + RULES[kind][i + 1 :],
    )
    assert any(mix.gguf_types(SPECS[n], t, imatrix=imatrix) != before[n, t] for n, t in pairs), rule


def test_other_rules_that_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("SEVENTY_B_V", {}),
        ("KEPT", ("_norm.weight",)),
        ("LOW", frozenset()),
        ("FIRST_RULES", ()),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(mix, name, value)
            assert any(differing()), name
    monkeypatch.setattr(mix, "_layer", lambda name: 0)
    assert any(differing())


# ---- figures published or measured elsewhere -----------------------------------------------------


@pytest.mark.parametrize(
    ("name", "nbytes"),
    [
        ("llama-2-7b", 4_080_263_168),
        ("llama-3-8b", 4_912_898_048),
        ("qwen3-0.6b", 390_753_280),
        ("mixtral-8x7b", 28_447_727_616),
        ("qwen3-30b-a3b", 18_550_716_416),
    ],
)
def test_q4_k_m_bytes(name: str, nbytes: int) -> None:
    tensors = mix.stored(presets.spec(name), "q4_k_m")
    assert sum(t.nbytes for t in tensors) == nbytes
    assert sum(t.params for t in tensors) == presets.spec(name).params


def test_share_of_fp16() -> None:
    spec = presets.spec("llama-3-8b")
    share = sum(t.nbytes for t in mix.stored(spec, "Q4_K_M")) / (2 * spec.params)
    assert round(100 * share, 1) == 30.6


def test_an_importance_matrix_changes_the_first_ffn_down() -> None:
    spec = presets.spec("llama-2-7b")
    with_one = {t.name: y for t, y in mix.gguf_types(spec, "q4_0", imatrix=True)}
    without = {t.name: y for t, y in mix.gguf_types(spec, "q4_0")}
    changed = {n for n in with_one if with_one[n] != without[n]}
    assert changed == {f"blk.{i}.ffn_down.weight" for i in range(4)}
    assert {with_one[n] for n in changed} == {"q4_1"}


# ---- the entry -----------------------------------------------------------------------------------


def test_kinds_and_names() -> None:
    assert mix.kind_of("bf16") == "dtype"
    assert mix.kind_of("Q4_K_M") == mix.kind_of("gguf:bf16") == mix.kind_of("iq4_xs") == "gguf"
    assert mix.kind_of("nf4") == mix.kind_of("awq:64") == mix.kind_of("fp8:128") == "hf"
    assert {mix.kind_of(f) for f in mix.known_formats()} == {"dtype", "gguf", "hf"}
    assert len(mix.known_formats()) == len(set(mix.known_formats()))


def test_every_known_format_stores_every_parameter_once() -> None:
    spec = spec_of("seven layers")
    for fmt in mix.known_formats():
        tensors = mix.stored(spec, fmt)
        assert sum(t.params for t in tensors) == spec.params, fmt
        assert all(t.nbytes > 0 for t in tensors)


def test_a_gguf_keeps_norms_and_routers_in_f32() -> None:
    spec = presets.spec("qwen3-30b-a3b")
    types = {t.name: t.type for t in mix.stored(spec, "gguf:bf16")}
    assert types["blk.3.ffn_gate_inp.weight"] == "f32"
    assert types["output_norm.weight"] == "f32"
    assert types["blk.3.ffn_gate_exps.weight"] == "bf16"
    assert {t.type for t in mix.stored(spec, "bf16")} == {"bf16"}


def test_active_bytes_follow_the_experts_chosen() -> None:
    experts = [t for t in mix.stored(presets.spec("mixtral-8x7b"), "q4_k_m") if "_exps" in t.name]
    assert len(experts) == 3 * 32
    assert all(t.active_nbytes * 4 == t.nbytes for t in experts)


def test_unknown_formats_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="format 'q4_k_x' is not known") as error:
        mix.kind_of("q4_k_x")
    assert "q4_k_m" in str(error.value)
    assert "awq:128" in str(error.value)
    with pytest.raises(UsageError, match=r"llama\.cpp file type 'nf4' is not known"):
        mix.gguf_types(presets.spec("smollm2-135m"), "nf4")


def test_the_file_types_that_need_an_importance_matrix() -> None:
    needing = {name for name, chosen in FILE_TYPES.items() if chosen.imatrix}
    assert set(GOLDEN["models"]["llama-2-7b"]["imatrix"]) == needing
    # Where rows force other types, fewer do.
    assert all(set(m["imatrix"]) <= needing for m in GOLDEN["models"].values())


def test_numbers_are_llama_cpps_own() -> None:
    """general.file_type as the gguf package lists it."""
    gguf = pytest.importorskip("gguf")
    theirs = {m.name.removeprefix("MOSTLY_").removeprefix("ALL_"): m for m in gguf.LlamaFileType}
    for chosen in FILE_TYPES.values():
        assert chosen.label in theirs
        assert chosen.number == theirs[chosen.label].value
        assert chosen.default in FORMATS


def test_a_real_file_has_these_types(smollm2_gguf: Path) -> None:
    gguf = pytest.importorskip("gguf")
    real = {t.name: t.tensor_type.name.lower() for t in gguf.GGUFReader(smollm2_gguf).tensors}
    spec = presets.spec("smollm2-135m")
    assert real == {t.name: type_ for t, type_ in mix.gguf_types(spec, "q4_1")}


def test_more_bits_is_the_rule_of_eighths_and_thirds() -> None:
    assert [i for i in range(32) if more_bits(i, 32)] == [
        0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31,
    ]  # fmt: skip


def test_types_before_they_fall_back() -> None:
    """Rows of 896 are no blocks of 256: what the rules want differs from what is given there."""
    spec = presets.spec("qwen2-0.5b")
    wanted = {t.name: w for t, w in mix.gguf_types(spec, "q4_k_m", fall_back=False)}
    given = {t.name: g for t, g in mix.gguf_types(spec, "q4_k_m")}
    assert (wanted["blk.0.ffn_gate.weight"], given["blk.0.ffn_gate.weight"]) == ("q4_k", "q5_0")
    assert (wanted["token_embd.weight"], given["token_embd.weight"]) == ("q6_k", "q8_0")
    assert wanted["blk.0.ffn_down.weight"] == given["blk.0.ffn_down.weight"]
    whole = presets.spec("llama-3-8b")
    assert mix.gguf_types(whole, "q4_k_m", fall_back=False) == mix.gguf_types(whole, "q4_k_m")
