"""The Python face: lazy, readable, and the same document as the command line's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gateup
from gateup.account.report.json_report import to_json


def test_import_is_lazy() -> None:
    script = (
        "import sys, gateup; assert len([m for m in sys.modules if m.startswith('gateup')]) == 1"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_example_of_the_docstring() -> None:
    answer = gateup.plan("llama-3-8b", quant="q4_k_m", ctx=32768)
    assert answer.figures["bytes.total"].value == 4_912_898_048


def test_repr_str_and_print(capsys: pytest.CaptureFixture[str]) -> None:
    answer = gateup.plan("qwen3-0.6b", ctx=64)
    assert repr(answer).startswith("<Plan qwen3-0.6b: 596,049,920 params")
    assert "Where it goes" in str(answer)
    answer.print(explain=True)
    out = capsys.readouterr().out
    assert "= 596,049,920" in out
    assert "How each figure of qwen3-0.6b comes about" in out


def test_to_dict_is_the_document() -> None:
    answer = gateup.plan("qwen3-0.6b", ctx=64)
    assert answer.to_dict() == to_json(answer)


def test_to_html_writes_where_asked(tmp_path: Path) -> None:
    page = tmp_path / "p.html"
    text = gateup.plan("qwen3-0.6b", ctx=64).to_html(page)
    assert page.read_text(encoding="utf-8") == text


def test_unknown_names_of_the_package() -> None:
    with pytest.raises(AttributeError, match="nothing_here"):
        gateup.nothing_here  # noqa: B018
    assert {"plan", "open"} <= set(dir(gateup))
