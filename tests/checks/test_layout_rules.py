"""Where gate and up lie: what the architecture declares, what a name tells, what nothing tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateup.checks.layout_rules import cut, order, ranks
from gateup.checks.runner import check
from gateup.model.layout import GateUpLayout, join, shard
from tests.checks.answers import preset, rules

Config = dict[str, Any]
Make = Callable[..., Any]


# ---- halves or neighbours ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "assumed", "remedy"),
    [
        ("gpt-oss-20b", "even = gate, odd = up", "gate = W[..., ::2], up = W[..., 1::2]"),
        ("gpt-oss-120b", "even = gate, odd = up", "chunk(2) is wrong here"),
        ("phi-3-mini", "gate first, then up", "gate = W[:I], up = W[I:]"),
        ("llama-4-scout", "gate first, then up", "gate = W[..., :I], up = W[..., I:]"),
    ],
)
def test_what_was_assumed(described: Make, name: str, assumed: str, remedy: str) -> None:
    (note,) = order(described(preset(name)))
    assert note.severity == "note"
    assert "cannot tell their order from shapes" in note.title
    assert assumed in note.title
    assert remedy in note.remedy


def test_gpt_oss_moves_bias_and_scales_alike(described: Make) -> None:
    (note,) = order(described(preset("gpt-oss-20b")))
    assert "weight, bias and scales alike" in note.remedy


@pytest.mark.parametrize("name", ["llama-3-8b", "qwen3-30b-a3b", "mixtral-8x7b", "gemma-2-9b"])
def test_projections_that_lie_apart_say_nothing(described: Make, name: str) -> None:
    assert order(described(preset(name))) == []
    assert ranks(described(preset(name), tp=2)) == []


@pytest.mark.parametrize("form", ["concat", "interleaved"])
@pytest.mark.parametrize("first", ["gate_up", "up_gate"])
@pytest.mark.parametrize("orientation", ["out_in", "in_out"])
@pytest.mark.parametrize("stacked", [False, True])
def test_the_cut_takes_gate_and_up_back_out(
    form: Any, first: Any, orientation: Any, stacked: bool
) -> None:
    """The expression that is printed, carried out on a tensor that was joined."""
    layout = GateUpLayout(form, first, orientation, stacked)
    shape = (2, 3, 4) if stacked else (3, 4)
    gate = np.arange(np.prod(shape)).reshape(shape)
    up = gate + 100
    names = {"W": join(gate, up, layout), "I": 3}
    exec(cut(layout).replace(", up", "; up"), names)
    for name, wanted in (("gate", gate), ("up", up)):
        found = names[name].swapaxes(-1, -2) if orientation == "in_out" else names[name]
        np.testing.assert_array_equal(found, wanted)


# ---- the wrong form ------------------------------------------------------------------------------


def fuse(tensors: dict[str, tuple[int, ...]], stem: str) -> dict[str, tuple[int, ...]]:
    """Gate and up of every layer in one tensor of that name."""
    out = {}
    for name, shape in tensors.items():
        if name.endswith("mlp.gate_proj.weight"):
            out[name.replace("gate_proj", stem)] = (2 * shape[0], shape[1])
        elif not name.endswith("mlp.up_proj.weight"):
            out[name] = shape
    return out


@pytest.mark.parametrize(
    ("stem", "writer"),
    [
        ("gate_up_proj", "Phi-3"),
        ("linear_fc1", "Megatron-Core (halves of each rank's shard, gate first)"),
        ("dense_h_to_4h", "ChatGLM"),
        ("w12", "xFormers"),
    ],
)
def test_fused_weights_under_an_architecture_that_has_them_apart(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make, stem: str, writer: str
) -> None:
    folder = write(tmp_path / "m", tiny, fuse(tensors_of(tiny), stem))
    found = only(check(folder).findings, "layout.fused")
    assert found.severity == "error"
    assert found.numbers == {"layers": 3, "width": 96}
    assert writer in found.cause
    assert "Cannot tell from the shape" in found.cause
    assert "gate = W[:96], up = W[96:]" in found.remedy
    assert rules(folder) == {"layout.fused"}  # nothing else is said about the same tensors


def test_split_weights_under_an_architecture_that_fuses_them(
    tmp_path: Path, write: Make, tensors_of: Make, converted: Config, only: Make
) -> None:
    config = converted["phi3"]["config"]
    tensors = {}
    for name, shape in tensors_of(config).items():
        if name.endswith("gate_up_proj.weight"):
            for half in ("gate_proj", "up_proj"):
                tensors[name.replace("gate_up_proj", half)] = (shape[0] // 2, shape[1])
        else:
            tensors[name] = shape
    folder = write(tmp_path / "m", config, tensors)
    found = only(check(folder).findings, "layout.fused")
    assert "gate and up lie apart in 3 layers" in found.title
    assert "torch.cat([gate, up])" in found.remedy
    assert rules(folder) == {"layout.fused"}
    assert rules(write(tmp_path / "healthy", config)) == set()


# ---- turned --------------------------------------------------------------------------------------


def test_transposed_experts(
    tmp_path: Path, write: Make, tensors_of: Make, converted: Config, only: Make
) -> None:
    config = converted["gpt_oss"]["config"]
    tensors = tensors_of(config)
    turned = 0
    for name, shape in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            tensors[name] = (shape[0], shape[2], shape[1])
            turned += 1
    folder = write(tmp_path / "m", config, tensors)
    found = only(check(folder).findings, "layout.transposed")
    assert found.numbers["tensors"] == turned
    assert rules(folder) == {"layout.transposed"}


def test_transposed_linear_weights_warn_of_the_square_ones(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    tensors = {n: s[::-1] if "mlp" in n else s for n, s in tensors_of(tiny).items()}
    found = only(check(write(tmp_path / "m", tiny, tensors)).findings, "layout.transposed")
    assert found.numbers == {"tensors": 9, "square": 6}  # q_proj and o_proj are [64, 64]
    assert "look at the 6 square ones" in found.remedy


# ---- ranks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 4])
def test_one_rank_s_share(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make, k: int
) -> None:
    tiny = {**tiny, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8}
    rows = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head")
    tensors = {}
    for name, shape in tensors_of(tiny).items():
        if any(f"{r}.weight" in name for r in rows):
            shape = (shape[0] // k, *shape[1:])
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            shape = (shape[0], shape[1] // k)
        tensors[name] = shape
    folder = write(tmp_path / "m", tiny, tensors)
    report = check(folder)
    found = only(report.findings, "layout.shard")
    assert found.numbers["tp"] == k
    assert "the gate parts of all ranks first, then the up parts" in found.remedy
    assert rules(folder) == {"layout.shard"}


def fused_llama(width: int) -> Config:
    """A Phi-3 of that width: fc1 is [2I, H] with gate rows first."""
    return {**preset("phi-3-mini"), "intermediate_size": width}


@pytest.mark.parametrize(("width", "tp"), [(11008, 2), (8192, 4), (17920, 8)])
def test_matching_rows_for_each_rank(described: Make, width: int, tp: int) -> None:
    (note,) = ranks(described(fused_llama(width), tp=tp))
    part = width // tp
    assert note.severity == "note"
    assert note.numbers["rows"] == part
    assert f"gate[r·{part}:(r+1)·{part}] and up[r·{part}:(r+1)·{part}]" in note.cause
    assert "the gate parts of all ranks, then the up parts" in note.remedy
    # the rows that are named are those the layout algebra gives the ranks
    fused = np.arange(2 * width).reshape(-1, 1)
    layout = GateUpLayout("concat", "gate_up")
    first = shard({"gate_up": fused}, layout, tp, 0)["gate_up"][:, 0]
    last = shard({"gate_up": fused}, layout, tp, tp - 1)["gate_up"][:, 0]
    for held in (first, last):
        (lo, hi), (lo2, hi2) = (held[0], held[part - 1]), (held[part], held[-1])
        assert f"rows {lo}-{hi} and {lo2}-{hi2}" in note.evidence[0].expected


def test_a_plain_cut_at_tp_2_is_all_gate(described: Make) -> None:
    (note,) = ranks(described(fused_llama(11008), tp=2))
    assert "a plain cut would give rank 0 rows 0-11007, all of gate" in note.cause


def test_neighbours_may_be_cut_anywhere_even(described: Make) -> None:
    (note,) = ranks(described(preset("gpt-oss-20b"), tp=2))
    assert "neighbours stay together" in note.evidence[0].expected
    assert "plain cut would" not in note.cause


@pytest.mark.parametrize("tp", [1, 3])
def test_one_rank_and_a_width_that_no_rank_divides_are_not_its_matter(
    described: Make, tp: int
) -> None:
    assert ranks(described(fused_llama(11008), tp=tp)) == []


# ---- names exchanged, or tensors turned ----------------------------------------------------------


def exchange(tensors: dict[str, tuple[int, ...]], a: str, b: str, layers: Any = None) -> None:
    """Each of two tensors under the other's name, biases too."""
    for name in list(tensors):
        if f".{a}." in name and (layers is None or any(f".{i}." in name for i in layers)):
            other = name.replace(f".{a}.", f".{b}.")
            tensors[name], tensors[other] = tensors[other], tensors[name]


@pytest.mark.parametrize(
    ("a", "b", "witness"),
    [("gate_proj", "down_proj", "up_proj"), ("up_proj", "down_proj", "gate_proj")],
)
def test_names_exchanged_are_no_transposition(
    tmp_path: Path,
    write: Make,
    tensors_of: Make,
    tiny: Config,
    only: Make,
    a: str,
    b: str,
    witness: str,
) -> None:
    tensors = tensors_of(tiny)
    exchange(tensors, a, b)
    report = check(write(tmp_path / "m", tiny, tensors))
    f = only(report.findings, "layout.exchanged")
    assert (f.severity, f.numbers) == ("error", {"pairs": 3, "sure": "yes"})
    assert f.title == (
        f"{a} and {b} have each other's shape in layers 0-2: their names were exchanged"
    )
    assert f"{witness} lies as described: nothing was turned" in f.cause
    assert f"exchange the names {a} and {b} in layers 0-2" in f.remedy
    assert "Do not transpose" in f.remedy
    assert {x.rule for x in report.findings if x.severity != "note"} == {"layout.exchanged"}


def test_the_same_in_attention_and_in_experts(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, converted: Config, only: Make
) -> None:
    config = {**tiny, "head_dim": 32, "num_key_value_heads": 1}
    for a, b, why in (("q_proj", "o_proj", "k_proj lies as"), ("q_proj", "k_proj", "no turning")):
        tensors = tensors_of(config)
        exchange(tensors, a, b)
        f = only(check(write(tmp_path / (a + b), config, tensors)).findings, "layout.exchanged")
        assert why in f.cause
        assert "--deep" not in f.remedy
    config = converted["mixtral"]["config"]
    tensors = tensors_of(config)
    exchange(tensors, "w2", "w3")
    f = only(check(write(tmp_path / "moe", config, tensors)).findings, "layout.exchanged")
    assert f.title.startswith("w3 and w2 have") or f.title.startswith("w2 and w3 have")


def test_one_layer_alone_cannot_tell(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    tensors = tensors_of(tiny)
    exchange(tensors, "gate_proj", "down_proj", [1])
    f = only(check(write(tmp_path / "m", tiny, tensors)).findings, "layout.exchanged")
    assert f.title.endswith("in layer 1: exchanged or transposed")
    assert f.cause.startswith("Cannot tell")
    assert "up_proj lies as described, which makes the names likelier" in f.cause
    assert "or transpose both" in f.remedy


def test_without_a_third_matrix_biases_tell(
    tmp_path: Path, write: Make, tensors_of: Make, converted: Config, only: Make
) -> None:
    config = converted["gpt2"]["config"]
    tensors = tensors_of(config)
    exchange(tensors, "mlp.c_fc", "mlp.c_proj")
    report = check(write(tmp_path / "names", config, tensors))
    f = only(report.findings, "layout.exchanged")
    assert "their biases have changed places too" in f.cause
    assert {x.rule for x in report.findings if x.severity != "note"} == {"layout.exchanged"}
    tensors = tensors_of(config)
    for name, shape in tensors.items():
        if ".mlp." in name and len(shape) == 2:
            tensors[name] = shape[::-1]
    report = check(write(tmp_path / "turned", config, tensors))
    assert only(report.findings, "layout.transposed").numbers["tensors"] == 6
    assert not [x for x in report.findings if x.rule == "layout.exchanged"]


def test_a_whole_layer_or_a_single_tensor_is_turned(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    for name, stems in (("mlp", ("gate_proj", "up_proj", "down_proj")), ("one", ("up_proj",))):
        tensors = tensors_of(tiny)
        for key, shape in tensors.items():
            if any(f".{s}." in key for s in stems) and (name == "mlp" or ".1." in key):
                tensors[key] = shape[::-1]
        report = check(write(tmp_path / name, tiny, tensors))
        found = only(report.findings, "layout.transposed").numbers["tensors"]
        assert found == (9 if name == "mlp" else 1)
        assert not [x for x in report.findings if x.rule == "layout.exchanged"]
