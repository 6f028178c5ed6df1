"""Embedding, head and tokenizer: what is too much, what too little, healthy twins."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateup.checks.measured import SecondHead, WeightScan
from gateup.checks.runner import check
from gateup.checks.tokenizer_files import find_tokenizer
from gateup.checks.vocab_rules import tied, vocab
from gateup.files.checkpoint import open_model
from tests.checks.answers import preset, rules

Config = dict[str, Any]
Make = Callable[..., Any]


# ---- tied heads ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "excess", "true", "counted"),
    [
        ("gemma-2-9b", 256_000 * 3584, 9_241_705_984, 10_159_209_984),
        ("llama-3.2-1b", 128_256 * 2048, 1_235_814_400, 1_498_482_688),
        ("qwen2.5-0.5b", 151_936 * 896, 494_032_768, 630_167_424),
    ],
)
def test_a_tied_head_saved_twice(
    tmp_path: Path,
    write: Make,
    tensors_of: Make,
    only: Make,
    name: str,
    excess: int,
    true: int,
    counted: int,
) -> None:
    config = preset(name)
    tensors = tensors_of(config)
    healthy = write(tmp_path / "healthy", config, tensors)
    assert rules(healthy) == set()
    tensors["lm_head.weight"] = (config["vocab_size"], config["hidden_size"])
    folder = write(tmp_path / "m", config, tensors, shards=2)
    found = only(check(folder).findings, "config.tied")
    assert found.severity == "warning"
    assert (found.numbers["excess"], found.numbers["params"]) == (excess, true)
    assert true + excess == counted
    assert f"{excess:,}" in found.title
    assert f"{counted:,}" in found.title
    assert "drop lm_head.weight and its entry in the index" in found.remedy
    assert rules(folder) == {"config.tied"}


@pytest.mark.parametrize(
    ("unequal", "severity", "words", "remedy"),
    [
        (None, "warning", "Headers cannot show which it is; --deep compares", "if it equals"),
        (0, "warning", "Nothing is lost but the bytes", "drop lm_head.weight"),
        (7, "error", "transformers 5 keeps both and uses the stored head, vLLM obeys", "to false"),
    ],
)
def test_what_the_head_is_decides(
    tmp_path: Path,
    write: Make,
    tensors_of: Make,
    tiny: Config,
    unequal: int | None,
    severity: str,
    words: str,
    remedy: str,
) -> None:
    from gateup.checks.context import Context

    config = {**tiny, "tie_word_embeddings": True}
    tensors = tensors_of(config) | {"lm_head.weight": (160, 64)}
    context = Context(open_model(write(tmp_path / "m", config, tensors)))
    if unequal is not None:
        scan = WeightScan(1, head=SecondHead("lm_head.weight", 160, unequal, 0.5))
        context = replace(context, scan=scan)
    [found] = tied(context)
    assert found.severity == severity
    assert words in found.cause
    assert remedy in found.remedy
    assert len(found.evidence) == (1 if unequal is None else 2)
    if unequal:
        assert found.evidence[1].found == "7 rows of 160 differ, by 0.5 at most"


# ---- vocabulary ----------------------------------------------------------------------------------


def tokenizer(folder: Path, entries: int, added: Mapping[str, int] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    vocab = {f"t{i}": i for i in range(entries)}
    data = {
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
        "added_tokens": [{"id": i, "content": text} for text, i in (added or {}).items()],
    }
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return folder


@pytest.mark.parametrize(
    ("name", "entries", "padding"),
    [
        ("qwen2.5-7b", 151_665, 399),
        ("qwen2.5-0.5b", 151_665, 271),
        ("phi-3-mini", 32_011, 53),
    ],
)
def test_padding_is_normal(
    tmp_path: Path, described: Make, name: str, entries: int, padding: int
) -> None:
    context = described(preset(name), tokenizer=find_tokenizer(tokenizer(tmp_path, entries)))
    (found,) = vocab(context)
    assert found.severity == "note"
    assert found.numbers["padding"] == padding
    assert "never shrink" in found.remedy
    assert "Only growth needs a resize" in found.cause


def test_a_vocabulary_of_the_same_size_says_nothing(
    tmp_path: Path, described: Make, tiny: Config
) -> None:
    context = described(tiny, tokenizer=find_tokenizer(tokenizer(tmp_path, 160)))
    assert vocab(context) == []


@pytest.mark.parametrize(
    ("entries", "added", "rows"),
    [(161, {}, 192), (150, {"<|im_start|>": 170}, 192), (160, {"<a>": 160, "<b>": 191}, 192)],
)
def test_growth_needs_a_resize(
    tmp_path: Path, described: Make, tiny: Config, entries: int, added: dict[str, int], rows: int
) -> None:
    context = described(tiny, tokenizer=find_tokenizer(tokenizer(tmp_path, entries, added)))
    (found,) = vocab(context)
    assert found.severity == "error"
    assert found.numbers["rows"] == rows
    assert f"({(rows - 160) * 64:,} new weights a matrix)" in found.remedy
    for token in added:
        assert token in found.cause


def test_the_tokenizer_beside_the_model_is_found(
    tmp_path: Path, write: Make, tiny: Config, only: Make
) -> None:
    folder = write(tmp_path / "m", tiny)
    tokenizer(folder, 170)
    assert only(check(folder).findings, "config.vocab").severity == "error"
    given = tokenizer(tmp_path / "t", 160)
    assert not any(f.rule == "config.vocab" for f in check(folder, tokenizer=given).findings)


def gguf_with(
    folder: Path, write_gguf: Make, model: Config, tokens: int | None, **ids: int
) -> Path:
    metadata = {**model["metadata"], **{f"tokenizer.ggml.{k}_token_id": v for k, v in ids.items()}}
    if tokens is not None:
        metadata["tokenizer.ggml.tokens"] = [f"t{i}" for i in range(tokens)]
    tensors = {n: ("f16", ne) for n, ne in model["tensors"].items()}
    return write_gguf(folder / "m.gguf", metadata, tensors)  # type: ignore[no-any-return]


@pytest.mark.parametrize("tokens", [159, 161, 9000])
def test_a_gguf_has_a_row_for_each_token(
    tmp_path: Path, write_gguf: Make, converted: Config, only: Make, tokens: int
) -> None:
    """9,000 strings are stepped over, not kept: their number is known all the same."""
    path = gguf_with(tmp_path, write_gguf, converted["llama"], tokens)
    found = only(check(path).findings, "config.gguf_vocab")
    assert (found.severity, found.numbers) == ("error", {"tokens": tokens, "rows": 160})


@pytest.mark.parametrize("tokens", [160, None])
def test_a_gguf_whose_tokens_fit_says_nothing(
    tmp_path: Path, write_gguf: Make, converted: Config, tokens: int | None
) -> None:
    assert rules(gguf_with(tmp_path, write_gguf, converted["llama"], tokens, eos=2)) == set()


def test_special_tokens_beyond_the_list(
    tmp_path: Path, write_gguf: Make, converted: Config, only: Make
) -> None:
    path = gguf_with(tmp_path, write_gguf, converted["llama"], 160, eos=160, bos=159)
    found = only(check(path).findings, "config.gguf_vocab")
    assert found.severity == "warning"
    assert found.numbers == {"id": 160, "tokens": 160}
