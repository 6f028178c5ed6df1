"""Tensors that are missing, too many, empty, twice, cut: each beside a file where all is well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateup.checks.runner import check
from gateup.model import presets
from gateup.model.quant.gguf_file import tensors_of as gguf_tensors_of
from tests.checks.answers import rules

Config = dict[str, Any]
Make = Callable[..., Any]


# ---- a mixture of experts is no truncated file ---------------------------------------------------

QWEN3_MOE = {
    "general.architecture": "qwen3moe",
    "qwen3moe.block_count": 48,
    "qwen3moe.embedding_length": 2048,
    "qwen3moe.feed_forward_length": 6144,
    "qwen3moe.expert_feed_forward_length": 768,
    "qwen3moe.expert_count": 128,
    "qwen3moe.expert_used_count": 8,
    "qwen3moe.attention.head_count": 32,
    "qwen3moe.attention.head_count_kv": 4,
    "qwen3moe.attention.key_length": 128,
    "qwen3moe.attention.value_length": 128,
    "qwen3moe.attention.layer_norm_rms_epsilon": 1e-6,
    "qwen3moe.rope.freq_base": 1e7,
    "qwen3moe.context_length": 262144,
}


def qwen3_moe() -> dict[str, tuple[str, tuple[int, ...]]]:
    spec = presets.spec("qwen3-30b-a3b")
    return {t.name: (t.type, tuple(reversed(t.shape))) for t in gguf_tensors_of(spec, "q4_k_m")}


def test_a_moe_file_without_dense_names_is_complete(
    tmp_path: Path, write_gguf: Make, only: Make
) -> None:
    """579 tensors that end at byte 18,556,689,568, the size of the file."""
    tensors = qwen3_moe()
    assert len(tensors) == 579
    path = write_gguf(tmp_path / "m.gguf", QWEN3_MOE, tensors, size=18_556_689_568)
    report = check(path)
    note = only(report.findings, "tensors.experts")
    assert note.severity == "note"
    assert note.numbers["end"] == note.numbers["size"] == 18_556_689_568
    assert "579 tensors" in note.title
    assert "by design" in note.title
    assert not note.remedy  # and above all no new download
    assert report.exit_code == 0
    assert rules(path) == set()


def test_the_same_file_one_byte_short_is_truncated(
    tmp_path: Path, write_gguf: Make, only: Make
) -> None:
    path = write_gguf(tmp_path / "m.gguf", QWEN3_MOE, qwen3_moe(), size=18_556_689_568, cut=1)
    report = check(path)
    assert report.exit_code == 2
    found = only(report.findings, "files.readable")
    assert found.numbers == {"have": 18_556_689_567, "need": 18_556_689_568, "cut": 1}
    assert "1 of 579 tensors" in found.cause


def test_a_moe_file_without_experts_is_not_complete(
    tmp_path: Path, write_gguf: Make, only: Make
) -> None:
    tensors = qwen3_moe()
    del tensors["blk.0.ffn_down_exps.weight"]
    report = check(write_gguf(tmp_path / "m.gguf", QWEN3_MOE, tensors))
    found = only(report.findings, "tensors.missing")
    assert (found.severity, found.numbers["tensors"]) == ("error", 1)
    assert "layer 0" in found.title
    assert not any(f.rule == "tensors.experts" for f in report.findings)


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3", "gpt_oss"])
def test_other_mixtures_are_complete_too(
    tmp_path: Path, write: Make, converted: Config, only: Make, name: str
) -> None:
    report = check(write(tmp_path / "m", converted[name]["config"]))
    assert only(report.findings, "tensors.experts").severity == "note"


def test_a_dense_model_has_nothing_of_it(tmp_path: Path, write: Make, tiny: Config) -> None:
    assert rules(write(tmp_path / "m", tiny)) == set()


# ---- truncated -----------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [1, 20_000])
def test_a_cut_safetensors_says_which_tensors_went(
    tmp_path: Path, write: Make, tiny: Config, only: Make, gone: int
) -> None:
    file = write(tmp_path / "m", tiny) / "model.safetensors"
    size = file.stat().st_size
    with file.open("r+b") as handle:
        handle.truncate(size - gone)
    report = check(file.parent)
    assert (report.exit_code, report.readable) == (2, False)
    found = only(report.findings, "files.readable")
    assert found.numbers["have"] == size - gone
    assert found.numbers["need"] == size
    # lm_head [160, 64] comes last and has 20,480 bytes
    assert found.numbers["cut"] == 1
    assert "lm_head.weight" in found.cause
    assert f"{gone:,} bytes" in found.remedy


def test_a_tokenizer_that_cannot_be_read_is_one_finding_among_others(
    tmp_path: Path, write: Make, tiny: Config, only: Make
) -> None:
    folder = write(tmp_path / "m", tiny)
    (folder / "tokenizer.json").write_text("{")
    report = check(folder)
    assert report.exit_code == 1
    assert "not JSON" in only(report.findings, "files.readable").title
    assert "config.fields" in report.ran


# ---- missing, unexpected, twice, empty -----------------------------------------------------------


def test_missing_tensors(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    tensors = tensors_of(tiny)
    for name in ("model.layers.1.mlp.up_proj.weight", "model.norm.weight"):
        del tensors[name]
    found = only(check(write(tmp_path / "m", tiny, tensors)).findings, "tensors.missing")
    assert found.severity == "error"
    assert found.numbers == {"tensors": 2, "params": 96 * 64 + 64, "elsewhere": 0}
    assert found.title == "2 tensors in no file (6,208 parameters): layer 1 and norm"


def test_names_with_a_wrapper_s_prefix(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    tensors = {"net._fsdp." + n: s for n, s in tensors_of(tiny).items()}
    found = only(check(write(tmp_path / "m", tiny, tensors)).findings, "tensors.missing")
    assert found.numbers["elsewhere"] == 30
    assert found.remedy == "strip 'net._fsdp.' from the names"


def test_missing_experts(
    tmp_path: Path, write: Make, tensors_of: Make, converted: Config, only: Make
) -> None:
    config = converted["mixtral"]["config"]
    tensors = tensors_of(config)
    gone = next(n for n in tensors if ".experts.2." in n)
    del tensors[gone]
    found = only(check(write(tmp_path / "m", config, tensors)).findings, "tensors.missing")
    assert found.title.startswith("experts are missing from 1 group")


def test_one_edit_too_many_is_not_reported_as_missing(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config
) -> None:
    """Layers that only the config has are the config's fault."""
    folder = write(tmp_path / "m", {**tiny, "num_hidden_layers": 5}, tensors_of(tiny))
    assert rules(folder) == {"config.fields"}


def test_unexpected_tensors(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    tensors = tensors_of(tiny)
    tensors["model.layers.0.mlp.router.weight"] = (8, 64)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = (8,)  # recomputed: no finding
    found = only(check(write(tmp_path / "m", tiny, tensors)).findings, "tensors.unexpected")
    assert (found.severity, found.numbers["tensors"]) == ("warning", 1)
    assert found.numbers["elements"] == 512


def test_a_vision_tower_is_a_note(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    tensors = {**tensors_of(tiny), "vision_tower.patch_embed.weight": (16, 16)}
    report = check(write(tmp_path / "m", tiny, tensors))
    assert only(report.findings, "tensors.unexpected").severity == "note"


def test_layers_of_multi_token_prediction_are_a_note(
    tmp_path: Path, write: Make, tensors_of: Make, converted: Config
) -> None:
    config = converted["deepseek_v3"]["config"]
    tensors = tensors_of(config)
    last = config["num_hidden_layers"]
    for name, shape in list(tensors.items()):
        if f"layers.{last - 1}." in name:
            tensors[name.replace(f"layers.{last - 1}.", f"layers.{last}.")] = shape
    tensors[f"model.layers.{last}.eh_proj.weight"] = (64, 128)
    tensors[f"model.layers.{last}.enorm.weight"] = (64,)
    assert rules(write(tmp_path / "m", config, tensors)) == set()


def test_dropped_biases(
    tmp_path: Path, write: Make, tensors_of: Make, converted: Config, only: Make
) -> None:
    """Qwen2 without the biases of q, k and v."""
    config = converted["qwen2"]["config"]
    tensors = {n: s for n, s in tensors_of(config).items() if not n.endswith(".bias")}
    report = check(write(tmp_path / "m", config, tensors))
    found = only(report.findings, "tensors.bias")
    assert found.title == "9 biases in no file: layers 0-2"
    assert not any(f.rule == "tensors.missing" for f in report.findings)


def test_biases_that_the_architecture_has_no_place_for(
    tmp_path: Path, write: Make, tensors_of: Make, converted: Config, only: Make
) -> None:
    config = converted["gemma"]["config"]
    tensors = tensors_of(config)
    tensors["model.layers.0.mlp.down_proj.bias"] = (64,)
    found = only(check(write(tmp_path / "m", config, tensors)).findings, "tensors.bias")
    assert found.title == "1 bias in the files (64 parameters) that the config does not declare"


@pytest.mark.parametrize("flag", ["attention_bias", "mlp_bias"])
@pytest.mark.parametrize("declared", [True, False])
def test_a_flag_that_forgot_the_biases_is_the_edit(
    tmp_path: Path,
    write: Make,
    tensors_of: Make,
    tiny: Config,
    only: Make,
    flag: str,
    declared: bool,
) -> None:
    config = {**tiny, flag: declared}
    folder = write(tmp_path / "m", config, tensors_of({**tiny, flag: not declared}))
    report = check(folder)
    found = only(report.findings, "config.fields")
    assert found.numbers[f"{flag}.fits"] is (not declared)
    assert rules(folder) == {"config.fields"}


def test_the_same_tensor_under_two_names(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    tensors = tensors_of(tiny)
    tensors["layers.0.mlp.up_proj.weight"] = (96, 64)
    found = only(check(write(tmp_path / "m", tiny, tensors)).findings, "tensors.duplicate")
    assert found.numbers == {"tensors": 1, "params": 96 * 64}
    assert {e.subject for e in found.evidence} == {
        "layers.0.mlp.up_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
    }


def test_placeholders_of_zero3(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    folder = write(tmp_path / "m", tiny, dict.fromkeys(tensors_of(tiny), (0,)))
    found = only(check(folder).findings, "tensors.empty")
    assert found.title == "30 of 30 tensors have no elements"
    assert "zero_to_fp32" in found.remedy
    assert rules(folder) == {"tensors.empty"}


def test_one_empty_tensor(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    tensors = {**tensors_of(tiny), "model.layers.1.mlp.gate_proj.weight": (0, 64)}
    found = only(check(write(tmp_path / "m", tiny, tensors)).findings, "tensors.empty")
    assert found.title == "1 of 30 tensors have no elements"


# ---- index and folder ----------------------------------------------------------------------------


def test_an_index_that_is_right(tmp_path: Path, write: Make, tiny: Config) -> None:
    assert rules(write(tmp_path / "m", tiny, shards=3)) == set()


@pytest.mark.parametrize(
    ("times", "why"), [(2, "counted 2 times"), (3, "counted 3 times"), (None, "not brought up")]
)
def test_total_size(
    tmp_path: Path, write: Make, tiny: Config, only: Make, times: int | None, why: str
) -> None:
    folder = write(tmp_path / "m", tiny, shards=2)
    stored = sum(t.nbytes for t in check(folder).context.checkpoint.headers)  # type: ignore[union-attr]
    said = stored * times if times else stored - 2
    report = check(write(folder, tiny, shards=2, total_size=said))
    found = only(report.findings, "files.index")
    assert found.severity == "warning"
    assert found.numbers == {"declared": said, "stored": stored}
    assert why in found.cause
    assert found.remedy == f"set total_size to {stored}"


def test_total_size_that_counts_a_tied_head(
    tmp_path: Path, write: Make, tiny: Config, only: Make
) -> None:
    config = {**tiny, "tie_word_embeddings": True}
    folder = write(tmp_path / "m", config, shards=2)
    stored = sum(t.nbytes for t in check(folder).context.checkpoint.headers)  # type: ignore[union-attr]
    folder = write(folder, config, shards=2, total_size=stored + 160 * 64 * 2)
    assert "160·64·2 bytes" in only(check(folder).findings, "files.index").cause


def test_a_tensor_in_two_shards(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    folder = write(tmp_path / "m", tiny, shards=2)
    other = write(tmp_path / "other", tiny, tensors_of(tiny))
    (other / "model.safetensors").rename(folder / "model-00002-of-00002.safetensors")
    report = check(folder)
    assert report.exit_code == 2
    found = only(report.findings, "files.readable")
    assert "is in two shards" in found.title
    assert "save_pretrained" in found.remedy


def test_a_second_copy_beside_the_shards(
    tmp_path: Path, write: Make, tiny: Config, only: Make
) -> None:
    folder = write(tmp_path / "m", tiny, shards=2)
    (folder / "consolidated.safetensors").write_bytes(b"x" * 1000)
    found = only(check(folder).findings, "files.beside")
    assert (found.severity, found.numbers) == ("note", {"files": 1, "bytes": 1000})


def test_a_tensor_that_the_index_forgot(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    import json

    folder = write(tmp_path / "m", tiny, shards=2)
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    del index["weight_map"]["model.norm.weight"]
    file.write_text(json.dumps(index))
    found = only(check(folder).findings, "files.index")
    assert (found.severity, found.numbers) == ("error", {"tensors": 1})


# ---- layers beyond the last, names of wrappers and of Meta ---------------------------------------


def test_layers_beyond_the_last_are_dropped_or_predict(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    """Where another tensor is wrong too, no edit of the config is offered, and this rule speaks."""
    more = tensors_of({**tiny, "num_hidden_layers": 5})
    more["model.layers.0.mlp.up_proj.weight"] = (95, 63)
    found = only(check(write(tmp_path / "m", tiny, more)).findings, "tensors.unexpected")
    assert found.severity == "error"
    assert "the files go on to layers 3-4" in found.cause
    assert found.remedy.startswith("set num_hidden_layers to 5")
    more["model.layers.4.eh_proj.weight"] = (64, 128)
    report = check(write(tmp_path / "n", tiny, more))
    both = [f for f in report.findings if f.rule == "tensors.unexpected"]
    assert [(f.severity, f.numbers["tensors"]) for f in both] == [("error", 9), ("note", 10)]
    predicting = tensors_of({**tiny, "num_hidden_layers": 4})
    predicting["model.layers.3.eh_proj.weight"] = (64, 128)
    report = check(write(tmp_path / "o", tiny, predicting))
    assert {f.severity for f in report.findings} == {"note"}


@pytest.mark.parametrize(
    ("rename", "remedy"),
    [
        (lambda n: n.replace("layers.", "_fsdp_wrapped_module.layers."), "strip '_fsdp_wrapped"),
        (lambda n: n.replace(".mlp.", ".mlp._orig_mod."), "strip '_orig_mod.'"),
        (lambda n: "net._orig_mod." + n, "strip '_orig_mod.' from the names; strip 'net.'"),
        (lambda n: "student." + n, "strip 'student.' from the names"),
        (
            lambda n: n.replace("mlp.gate_proj", "mlp.w1").replace("mlp.up_proj", "mlp.w3"),
            "rename mlp.w1 to mlp.gate_proj, mlp.w3 to mlp.up_proj",
        ),
        (
            lambda n: n.replace("mlp.down_proj", "feed_forward.w2"),
            "rename feed_forward.w2 to mlp.down_proj (w2 is down: the order is gate, down, up)",
        ),
    ],
)
def test_names_that_wrappers_and_converters_leave(
    tmp_path: Path,
    write: Make,
    tensors_of: Make,
    tiny: Config,
    only: Make,
    rename: Callable[[str], str],
    remedy: str,
) -> None:
    tensors = {rename(n): s for n, s in tensors_of(tiny).items()}
    report = check(write(tmp_path / "m", tiny, tensors))
    missing = only(report.findings, "tensors.missing")
    assert remedy in missing.remedy
    assert missing.numbers["elsewhere"] == missing.numbers["tensors"]
    assert remedy in only(report.findings, "tensors.unexpected").remedy


def test_names_of_something_else_get_no_such_hint(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    tensors = tensors_of(tiny)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.1.mlp.w9.weight"] = (96, 64)
    report = check(write(tmp_path / "m", tiny, tensors))
    assert only(report.findings, "tensors.missing").numbers["elsewhere"] == 0
    assert "rename them if" in only(report.findings, "tensors.unexpected").remedy
