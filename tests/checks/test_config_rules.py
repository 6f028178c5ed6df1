"""config.json against weights: cases that users met, more of each kind, and healthy twins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gateup.checks.config_rules import blocks
from gateup.checks.runner import check
from gateup.files.safetensors import read_safetensors
from tests.checks.answers import preset, rules

Config = dict[str, Any]
Make = Callable[..., Any]


# ---- widths per layer ----------------------------------------------------------------------------


def pruned(
    tensors: dict[str, tuple[int, ...]], hidden: int, widths: Mapping[int, int]
) -> dict[str, tuple[int, ...]]:
    out = dict(tensors)
    for layer, width in widths.items():
        mlp = f"model.layers.{layer}.mlp."
        out[mlp + "gate_proj.weight"] = out[mlp + "up_proj.weight"] = (width, hidden)
        out[mlp + "down_proj.weight"] = (hidden, width)
    return out


PRUNED = {4: 2816, 7: 3840, 9: 2816, 13: 768, 17: 768}


def test_a_model_pruned_layer_by_layer(
    tmp_path: Path, write: Make, tensors_of: Make, only: Make
) -> None:
    """Qwen2.5-0.5B: five layers differ, no single width is right, padding is lossless."""
    config = preset("qwen2.5-0.5b")
    folder = write(tmp_path / "m", config, pruned(tensors_of(config), 896, PRUNED))
    report = check(folder)
    assert report.exit_code == 1
    found = only(report.findings, "config.widths")
    assert found.severity == "error"
    assert {k: v for k, v in found.numbers.items() if k.startswith("layer.")} == {
        f"layer.{i}": width for i, width in PRUNED.items()
    }
    assert found.numbers["target"] == 4864
    assert found.numbers["cost"] == sum(3 * 896 * (4864 - w) for w in PRUNED.values()) == 35_782_656
    assert "3840 in layer 7; 2816 in layers 4, 9; 768 in layers 13, 17" in found.title
    assert "The files are whole" in found.cause
    assert "no intermediate_size is right" in found.cause
    assert "zero rows and down with zero columns to 4864 in layers 4, 7, 9, 13, 17" in found.remedy
    assert "Not ignore_mismatched_sizes" in found.remedy
    assert rules(folder) == {"config.widths"}


def test_the_remedy_is_true(tmp_path: Path, write: Make, tensors_of: Make) -> None:
    """The padded checkpoint has no finding, and as many weights more as was said."""
    config = preset("qwen2.5-0.5b")
    narrow = write(tmp_path / "a", config, pruned(tensors_of(config), 896, PRUNED))
    padded = write(tmp_path / "b", config)
    assert rules(padded) == set()

    def weights(folder: Path) -> int:
        return sum(t.nbytes // 2 for t in read_safetensors(folder / "model.safetensors").tensors)

    assert weights(padded) - weights(narrow) == 35_782_656


def test_a_layer_wider_than_the_config_sets_the_target(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    folder = write(tmp_path / "m", tiny, pruned(tensors_of(tiny), 64, {0: 128, 1: 80}))
    found = only(check(folder).findings, "config.widths")
    assert found.numbers["target"] == 128
    # layer 1 from 80, layer 2 from the 96 of the config
    assert found.numbers["cost"] == 3 * 64 * (48 + 32)
    assert "in layers 1-2, and set intermediate_size to 128" in found.remedy


def test_padding_with_biases_counts_them(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    config = {**tiny, "mlp_bias": True}
    tensors = pruned(tensors_of(config), 64, {1: 80})
    for name in ("gate_proj", "up_proj"):
        tensors[f"model.layers.1.mlp.{name}.bias"] = (80,)
    folder = write(tmp_path / "m", config, tensors)
    assert only(check(folder).findings, "config.widths").numbers["cost"] == (3 * 64 + 2) * 16
    assert rules(folder) == {"config.widths"}


def test_experts_pruned_in_one_layer(
    tmp_path: Path, write: Make, tensors_of: Make, converted: Config, only: Make
) -> None:
    config = converted["mixtral"]["config"]
    tensors = tensors_of(config)
    H, E = config["hidden_size"], config["num_local_experts"]
    for name in tensors:
        if ".layers.1." in name and ".experts." in name:
            tensors[name] = (H, 32) if name.endswith("w2.weight") else (32, H)
    found = only(check(write(tmp_path / "m", config, tensors)).findings, "config.widths")
    assert found.numbers["layer.1"] == 32
    assert found.numbers["cost"] == 3 * H * E * (config["intermediate_size"] - 32)


def test_fused_gate_up_pruned(
    tmp_path: Path, write: Make, tensors_of: Make, converted: Config, only: Make
) -> None:
    config = converted["phi3"]["config"]
    tensors = tensors_of(config)
    H = config["hidden_size"]
    tensors["model.layers.1.mlp.gate_up_proj.weight"] = (2 * 40, H)
    tensors["model.layers.1.mlp.down_proj.weight"] = (H, 40)
    found = only(check(write(tmp_path / "m", config, tensors)).findings, "config.widths")
    assert found.numbers["layer.1"] == 40


def test_gate_and_up_that_disagree_are_torn(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    tensors = {**tensors_of(tiny), "model.layers.1.mlp.up_proj.weight": (80, 64)}
    found = only(check(write(tmp_path / "m", tiny, tensors)).findings, "config.widths")
    assert "gate, up and down disagree" in found.title
    assert "layer 1" in found.title


# ---- fields that a shape follows from ------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("intermediate_size", 64),
        ("intermediate_size", 192),
        ("num_key_value_heads", 4),
        ("num_key_value_heads", 1),
        ("num_attention_heads", 2),
        ("vocab_size", 128),
        ("vocab_size", 320),
        ("num_hidden_layers", 2),
        ("num_hidden_layers", 7),
        ("hidden_size", 32),
    ],
)
def test_an_edited_field_is_named_and_set_right(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make, field: str, value: Any
) -> None:
    """head_dim is given, so that each field changes its own shapes only."""
    true = {**tiny, "head_dim": 16}
    folder = write(tmp_path / "m", {**true, field: value}, tensors_of(true))
    found = only(check(folder).findings, "config.fields")
    assert {k for k in found.numbers if k.endswith(".fits")} == {f"{field}.fits"}
    assert found.numbers[f"{field}.fits"] == true[field]
    assert found.remedy.endswith("every tensor fits then")
    assert rules(folder) <= {"config.fields"}
    # the remedy is true
    assert rules(write(folder, true, tensors_of(true))) == set()


@pytest.mark.parametrize("flag", [False, None])
@pytest.mark.parametrize("lost", ["flag", "head"])
def test_a_missing_head_is_not_said_to_be_the_embedding(
    tmp_path: Path,
    write: Make,
    tensors_of: Make,
    tiny: Config,
    only: Make,
    flag: bool | None,
    lost: str,
) -> None:
    """The same files come of a tied model whose flag was lost and of an untied one's lost head."""
    tensors = tensors_of({**tiny, "tie_word_embeddings": lost == "flag"})
    tensors.pop("lm_head.weight", None)
    folder = write(tmp_path / "m", {**tiny, "tie_word_embeddings": flag}, tensors)
    found = only(check(folder).findings, "config.fields")
    assert found.severity == "error"
    assert "cannot tell the two apart" in found.cause
    assert found.remedy.startswith("fetch the files again")
    assert "Only if the model that these weights came from was tied" in found.remedy
    assert "known llama models: " in found.remedy
    assert found.remedy.endswith("every tensor fits then")
    tied = {**tiny, "tie_word_embeddings": True}
    assert rules(write(folder, tied, tensors)) == set()


def test_two_edited_fields(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    wrong = {**tiny, "intermediate_size": 112, "vocab_size": 200}
    found = only(check(write(tmp_path / "m", wrong, tensors_of(tiny))).findings, "config.fields")
    assert found.numbers["intermediate_size.fits"] == 96
    assert found.numbers["vocab_size.fits"] == 160


def test_layers_that_are_never_loaded_are_an_error(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    folder = write(tmp_path / "m", {**tiny, "num_hidden_layers": 2}, tensors_of(tiny))
    found = only(check(folder).findings, "config.fields")
    assert found.severity == "error"
    assert "dropped at load with a line in a log" in found.cause
    folder = write(tmp_path / "n", {**tiny, "num_hidden_layers": 4}, tensors_of(tiny))
    assert only(check(folder).findings, "config.fields").severity == "error"


def test_two_flags_for_one_reason_give_it_once(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    biased = {**tiny, "mlp_bias": True, "attention_bias": True}
    found = only(check(write(tmp_path / "m", biased, tensors_of(tiny))).findings, "config.fields")
    assert found.numbers["mlp_bias.fits"] is False
    assert found.numbers["attention_bias.fits"] is False
    assert found.cause == "The declared biases are in no file."


def test_a_gguf_names_its_own_key(
    tmp_path: Path, write_gguf: Make, converted: Config, only: Make
) -> None:
    model = converted["llama"]
    tensors = {n: ("f16", ne) for n, ne in model["tensors"].items()}
    metadata = {**model["metadata"], "llama.feed_forward_length": 128}
    found = only(
        check(write_gguf(tmp_path / "m.gguf", metadata, tensors)).findings, "config.fields"
    )
    assert "llama.feed_forward_length 96 in GGUF metadata" in found.remedy


def test_what_no_field_explains(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    tensors = {**tensors_of(tiny), "model.layers.1.self_attn.q_proj.weight": (48, 64)}
    folder = write(tmp_path / "m", tiny, tensors)
    found = only(check(folder).findings, "config.shape")
    assert (found.severity, found.numbers) == ("error", {"tensors": 1})
    (evidence,) = found.evidence
    assert (evidence.found, evidence.expected) == ("[48, 64]", "[64, 64]")
    assert rules(folder) == {"config.shape"}


# ---- widths per block ----------------------------------------------------------------------------

MULTS = {1.95: 21504, 4.875: 53248, 5.25: 57344, 31.40625: 343040, 39.0: 425984}


def nemotron(ffns: list[dict[str, Any]], **changes: Any) -> Config:
    return {
        "architectures": ["DeciLMForCausalLM"],
        "model_type": "nemotron-nas",
        "hidden_size": 16384,
        "intermediate_size": None,
        "num_hidden_layers": len(ffns),
        "num_attention_heads": 128,
        "num_key_value_heads": None,
        "vocab_size": 128256,
        "block_configs": [{"attention": {"n_heads_in_group": 16}, "ffn": f} for f in ffns],
        **changes,
    }


def test_widths_per_block(described: Make) -> None:
    """The five multipliers of Nemotron-Ultra and a block without an MLP."""
    ffns: list[dict[str, Any]] = [{"ffn_mult": m} for m in MULTS]
    context = described(nemotron([*ffns, {"ffn_mult": None, "no_op": True}]))
    (note,) = blocks(context)
    assert note.severity == "note"
    assert note.numbers == {f"width.{w}": 1 for w in (0, *MULTS.values())}
    assert "no MLP in 1 layer" in note.title


def test_an_explicit_width_that_disagrees_with_its_multiplier(described: Make) -> None:
    ffns = [
        {"intermediate_size": 21504, "ffn_mult": 1.95},
        {"intermediate_size": 1024, "ffn_mult": 2},
    ]
    found = [f for f in blocks(described(nemotron(ffns))) if f.severity == "warning"]
    (evidence,) = found[0].evidence
    assert evidence.subject == "block_configs[1].ffn"
    assert (evidence.found, evidence.expected) == ("intermediate_size 1024", "22016")


def test_explicit_widths_alone_and_other_families_say_nothing_above_a_note(
    described: Make, tiny: Config
) -> None:
    ffns: list[dict[str, Any]] = [{"intermediate_size": 21504}, {"intermediate_size": 53248}]
    assert [f.severity for f in blocks(described(nemotron(ffns)))] == ["note"]
    assert blocks(described(nemotron(ffns, intermediate_size=21504))) == []
    assert blocks(described(tiny)) == []


def test_a_block_that_the_files_contradict(
    tmp_path: Path, write: Make, tensors_of: Make, converted: Config, only: Make
) -> None:
    config = converted["deci"]["config"]
    H = config["hidden_size"]
    tensors = pruned(tensors_of(config), H, {0: 32})
    found = only(check(write(tmp_path / "m", config, tensors)).findings, "config.widths")
    assert "per-layer fields: 32 in layer 0" in found.remedy
