"""gateup handbook: text on stdout, a notebook, a page; what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateup import cli_handbook
from gateup.cli import app
from gateup.lab.handbook.markdown import document


def invoke(*args: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["handbook", *args])
    return done.exit_code, done.stdout, done.stderr


def test_the_text_in_either_language() -> None:
    assert invoke("--lang", "en")[:2] == (0, document("en"))
    assert invoke("--lang", "zh")[:2] == (0, document("zh"))
    code, out, err = invoke("--lang", "fr")
    assert (code, out) == (2, "")
    assert "no language 'fr'" in err


def test_the_notebook(tmp_path: Path) -> None:
    path = tmp_path / "h.ipynb"
    code, out, _ = invoke("--lang", "zh", "--notebook", str(path))
    assert (code, out.strip()) == (0, str(path))
    assert json.loads(path.read_text("utf-8"))["metadata"]["title"] == "门控前馈网络"
    code, _, err = invoke("--notebook", str(path))
    assert code == 2
    assert "is there already" in err
    assert invoke("--lang", "en", "--notebook", str(path), "--force")[0] == 0
    assert json.loads(path.read_text("utf-8"))["metadata"]["title"].startswith("The gated")


def test_a_page_that_cannot_be_written_costs_no_time(tmp_path: Path) -> None:
    code, out, err = invoke(
        "--notebook", str(tmp_path / "h.ipynb"), "--html", str(tmp_path / "none" / "h.html")
    )
    assert (code, out) == (2, "")
    assert "does not exist" in err
    assert not list(tmp_path.iterdir())


def test_one_file_cannot_be_both(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    both = ("--notebook", str(tmp_path / "a"), "--html", str(tmp_path / "sub" / ".." / "a"))
    for force in ((), ("--force",)):
        code, out, err = invoke(*both, *force)
        assert (code, out) == (2, "")
        assert "--notebook and --html name one file" in err
    assert not (tmp_path / "a").exists()


def test_without_the_packages_for_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_handbook, "NEEDED", ("no_such_package",))
    code, _, err = invoke("--html", str(tmp_path / "h.html"))
    assert code == 2
    assert "the page needs no_such_package" in err
    assert 'pip install "gateup[lab]"' in err


def test_the_page_runs_the_experiments(tmp_path: Path) -> None:
    path = tmp_path / "h.html"
    code, out, err = invoke("--lang", "en", "--html", str(path))
    assert (code, err, out.strip()) == (0, "", str(path))
    html = path.read_text("utf-8")
    assert "FFN: True   attention: False" in html
    assert html.count("<svg") == 3


def test_the_text_needs_neither_torch_nor_the_web_packages() -> None:
    blocked = "torch", "nicegui", "latex2mathml", "markdown2", "nbformat"
    script = (
        f"import sys; [sys.modules.__setitem__(m, None) for m in {blocked!r}]\n"
        "from gateup.lab.handbook.markdown import document\n"
        "from gateup.lab.handbook.notebook import notebook\n"
        "document('en'), notebook('zh')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
