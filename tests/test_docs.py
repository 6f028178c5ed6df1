"""Every Python block in the pages about PyTorch and the engine runs, in the page's order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gateup.ops
from gateup.nn.names import LEAVES

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.M | re.S)


@pytest.mark.parametrize("page", ["patch.md", "nn.md", "gguf.md", "run.md"])
def test_the_blocks_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = BLOCK.findall((DOCS / page).read_text("utf-8"))
    assert found
    names: dict[str, object] = {}
    for language, body in found:
        if language == "python":
            capsys.readouterr()
            exec(compile(body, page, "exec"), names)
        else:  # what the block before it prints
            assert capsys.readouterr().out == body


def test_the_page_lists_every_activation_dialect_and_function() -> None:
    text = (DOCS / "nn.md").read_text("utf-8")
    for name in (*gateup.ops.ACTIVATIONS, *LEAVES, *gateup.ops.__all__):
        if name != "ACTIVATIONS":
            assert re.search(rf"[`\"\w.]*\b{name}\b", text), name
