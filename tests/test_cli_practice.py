"""`gateup practice` in the shell: files are not overwritten, exit codes, both languages, JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateup.cli import app
from gateup.practice.exercise import find


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("LC_ALL", "C.UTF-8")


def _run(*args: str, code: int = 0, **env: str) -> Any:
    result = CliRunner().invoke(app, ["practice", *args], env={"COLUMNS": "120", **env})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def test_from_start_to_passed(tmp_path: Path) -> None:
    mine = tmp_path / "gateup-practice" / "01_silu.py"
    assert "gateup practice test 1" in _run("start", "1").stdout
    assert mine.read_text() == find("silu").starter()
    assert mine.with_suffix(".md").read_text().startswith("# A SiLU")

    failed = _run("test", "silu", code=1).stdout
    assert "The function returned None" in failed
    assert "not yet: 0 of 5 cases passed" in failed
    assert "guards in force: own process" in failed

    mine.write_text((find("silu").folder / "mutants" / "relu.py").read_text())
    failed = _run("test", "1", "--seed", "7", code=1).stdout
    assert "This is ReLU, max(x, 0)." in failed
    assert "the same cases again: --seed 7" in failed
    assert "largest error: absolute" in failed

    assert _run("hint", "1").stdout.startswith("hint 1 of 3: SiLU is")
    both = _run("hint", "1", "--lang", "zh").stdout
    assert both.count("\n") == 2
    assert "提示 2/3" in both

    mine.write_text(_run("solution", "1").stdout)
    assert "it does not count" in _run("test", "1", "--seed", "7").stdout
    assert "passed, hints" not in _run("list").stdout
    assert "passed: all 5 cases" in _run("test", "1").stdout
    assert "passed, hints seen: 2, solution seen" in _run("list").stdout
    records = json.loads(_run("progress", "--json").stdout)
    assert records["silu"]["attempts"] == 2


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    _run("start", "silu", "--dir", "here")
    mine = tmp_path / "here" / "01_silu.py"
    mine.write_text("mine")
    assert "is there already" in _run("start", "silu", "--dir", "here", code=2).stderr
    assert "is there already" in _run("reset", "silu", "--dir", "here", code=2).stderr
    assert mine.read_text() == "mine"
    _run("hint", "silu")
    _run("reset", "silu", "--dir", "here", "--force")
    assert mine.read_text() == find("silu").starter()
    assert (tmp_path / "here" / "01_silu.py.bak").read_text() == "mine"
    assert "hints seen" not in _run("progress").stdout


def test_json_is_the_verdict_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print('passed')\n")
    verdict = json.loads(_run("test", "1", "--file", "a.py", "--json", code=1).stdout)
    assert verdict["passed"] is False
    assert verdict["output"] == "passed\n"
    assert verdict["cases"][0]["error"] == "NameError: there is no function silu"


def test_the_language_is_the_environment_s() -> None:
    assert "不会溢出的 SiLU" in _run("list", LC_ALL="zh_CN.UTF-8").stdout
    assert "A SiLU that" in _run("list", "--lang", "en", LC_ALL="zh_CN.UTF-8").stdout
    assert "no language 'fr'" in _run("list", "--lang", "fr", code=2).stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("test", "1"), "there is no gateup-practice/01_silu.py"),
        (("start", "77"), "there is no exercise '77'"),
        (("test", "1", "--file", "."), "cannot be read"),
        (("test", "1", "--file", "binary.py"), "not UTF-8"),
    ],
)
def test_what_cannot_be_judged_is_one_message(
    args: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe")
    error = _run(*args, code=2).stderr
    assert error.startswith("gateup: ")
    assert message in error


def test_broken_progress_is_told_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "data" / "gateup" / "practice.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert "begun anew" in _run("list").stderr
    assert path.with_suffix(".broken.json").exists()
