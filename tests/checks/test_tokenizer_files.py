"""A tokenizer's size from its files: fast, slow, unigram, broken, absent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateup.checks import tokenizer_files
from gateup.checks.tokenizer_files import find_tokenizer, read_tokenizer
from gateup.errors import ConfigError, InputError


def test_slow_tokenizers_and_added_tokens(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<c>": 2}))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "added_tokens_decoder": {"2": {"content": "<c>"}, "5": {"content": "<d>"}},
                "eos_token": {"content": "<d>"},
                "pad_token": "<c>",
            }
        )
    )
    info = read_tokenizer(tmp_path)
    assert (info.size, info.highest) == (4, 5)
    assert info.source == "vocab.json, added_tokens.json, tokenizer_config.json"
    assert info.ids == {"eos_token": 5, "pad_token": 2}


def test_unigram_vocabularies(tmp_path: Path) -> None:
    data = {"model": {"vocab": [["<unk>", 0.0], ["a", -1.5]]}, "added_tokens": None}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    assert read_tokenizer(tmp_path).size == 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", '{"model": {"vocab": 7}}', "the vocabulary is 7"),
        ("tokenizer.json", '{"model": {"vocab": {"a": -1}}}', "the id is -1"),
        ("tokenizer.json", '{"model": {"vocab": {"a": true}}}', "the id is True"),
        ("tokenizer.json", '{"model": {"vocab": [["a"], 3]}}', "entry 1 is 3"),
        ("tokenizer.json", '{"model": {"vocab": {}}}', "has no entries"),
        ("tokenizer.json", '{"model": {"vocab": {"a": 0}}, "added_tokens": [1]}', "an added token"),
        ("tokenizer.json", "[]", "tokenizer.json is a list"),
        ("vocab.json", '{"a": "b"}', "the id is 'b'"),
        ("vocab.json", "", "vocab.json is empty"),
    ],
)
def test_broken_tokenizers(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as e:
        read_tokenizer(tmp_path)
    assert message in str(e.value)
    assert name in str(e.value)


def test_no_tokenizer(tmp_path: Path) -> None:
    assert find_tokenizer(tmp_path) is None
    with pytest.raises(InputError, match="no tokenizer whose size"):
        read_tokenizer(tmp_path)
    with pytest.raises(InputError, match="no such tokenizer"):
        read_tokenizer(tmp_path / "nowhere")


def test_large_files_are_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_files, "MAX_TOKENIZER_BYTES", 10)
    (tmp_path / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(ConfigError, match="has 13 bytes"):
        read_tokenizer(tmp_path)
