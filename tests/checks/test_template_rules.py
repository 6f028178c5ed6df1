"""Chat templates in files of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateup.checks.runner import check

Make = Callable[..., Any]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
VOCAB = {"model": {"type": "BPE", "vocab": {"<|im_end|>": 3, "</s>": 2}}}


@pytest.fixture
def model(tmp_path: Path, write: Make, tiny: dict[str, Any]) -> Path:
    return Path(write(tmp_path / "m", {**tiny, "eos_token_id": 2}))


def tokenizer(folder: Path, **settings: Any) -> None:
    added = {"added_tokens": [{"id": 3, "content": "<|im_end|>"}, {"id": 2, "content": "</s>"}]}
    (folder / "tokenizer.json").write_text(json.dumps({**VOCAB, **added}))
    config = {"eos_token": "</s>", **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def titles(folder: Path, rule: str) -> list[str]:
    report = check(folder)
    assert not report.failed
    return [f"{f.severity}: {f.title}" for f in report.findings if f.rule == rule]


def test_a_template_alone(model: Path) -> None:
    (model / "chat_template.jinja").write_text(TEMPLATE)
    assert titles(model, "generation.template") == [
        "warning: chat_template.jinja is here, and no tokenizer"
    ]


def test_a_template_in_a_file_of_its_own_is_read(model: Path) -> None:
    """Its turn ends are held against eos_token_id, as those in tokenizer_config.json are."""
    tokenizer(model)
    assert titles(model, "generation.stop") == []
    (model / "chat_template.jinja").write_text(TEMPLATE)
    assert titles(model, "generation.template") == []
    (found,) = titles(model, "generation.stop")
    assert found == "note: the chat template ends turns with <|im_end|> (3), which stops nothing"
    (model / "chat_template.jinja").unlink()
    tokenizer(model, chat_template=TEMPLATE)
    assert titles(model, "generation.stop") == [found]


def test_two_templates(model: Path) -> None:
    (model / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer(model, chat_template=TEMPLATE.replace("role", "name"))
    assert titles(model, "generation.template") == [
        "warning: chat_template.jinja and tokenizer_config.json have different chat templates"
    ]
    tokenizer(model, chat_template=TEMPLATE + "\n")
    assert titles(model, "generation.template") == []


@pytest.mark.parametrize("data", [b"\xff\xfe", b"x" * ((1 << 20) + 1)])
def test_a_template_that_cannot_be_read_is_said(model: Path, data: bytes) -> None:
    (model / "chat_template.jinja").write_bytes(data)
    tokenizer(model)
    report = check(model)
    assert not report.failed
    assert report.context is not None
    assert [str(e.where).endswith("chat_template.jinja") for e in report.context.unreadable]
