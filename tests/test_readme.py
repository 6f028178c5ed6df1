"""Every command in the READMEs runs, and both languages give the same commands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateup.ops import native

ROOT = Path(__file__).parent.parent
READMES = ("README.md", "README.zh-CN.md")
FENCE = re.compile(r"^```(sh|python)\n(.*?)^```$", re.M | re.S)


def blocks(readme: str, language: str) -> list[str]:
    return [
        body for lang, body in FENCE.findall((ROOT / readme).read_text("utf-8")) if lang == language
    ]


def commands(readme: str) -> list[str]:
    """Shell lines of the `sh` blocks, continuation lines joined, comments dropped."""
    text = "\n".join(blocks(readme, "sh")).replace("\\\n", " ")
    lines = (line.split("  #")[0].strip() for line in text.splitlines())
    return [" ".join(line.split()) for line in lines if line and not line.startswith("#")]


GATEUP = sorted({c for r in READMES for c in commands(r) if c.startswith("gateup ")})
if not native.status().available:  # the machine cannot be measured, and it says so
    GATEUP = [c for c in GATEUP if not c.startswith("gateup bench")]


def test_both_languages_give_the_same_commands() -> None:
    own = [c.replace("--lang zh", "--lang en") for c in commands("README.zh-CN.md")]
    assert commands("README.md") == own
    assert blocks("README.md", "python") == blocks("README.zh-CN.md", "python")
    assert len(GATEUP) >= 5


@pytest.mark.parametrize("command", GATEUP)
def test_command_runs(command: str, tmp_path: Path, smollm2_gguf: Path) -> None:
    argv = [sys.executable, "-m", "gateup", *shlex.split(command)[1:]]
    done = subprocess.run(
        argv,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "120"},
        check=False,
    )
    # 1 is an answer ("does not fit"), 2 and a traceback are not.
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.strip()


SAMPLE = re.compile(r"^```sh\n(gateup [^\n]*)\n```\n\n```text\n(.*?)^```$", re.M | re.S)


@pytest.mark.parametrize("readme", READMES)
@pytest.mark.parametrize("which", [0, 1])
def test_the_sample_is_what_the_command_prints(readme: str, which: int, tmp_path: Path) -> None:
    """Where it fails, paste what the command prints now; … stands for what is left out."""
    found = SAMPLE.findall((ROOT / readme).read_text("utf-8"))[which]
    done = subprocess.run(
        [sys.executable, "-m", "gateup", *shlex.split(found[0])[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "110", "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert done.returncode == 1, done.stderr
    printed = iter(done.stdout.splitlines())
    for line in found[1].splitlines():
        if line.strip() != "…":
            assert line in printed, line  # in this order


@pytest.mark.parametrize("readme", READMES)
def test_make_targets_exist(readme: str) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = [c.split()[1] for c in commands(readme) if c.startswith("make ")]
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.M), target


@pytest.mark.parametrize("code", blocks("README.md", "python"))
def test_python_blocks_run(code: str, tmp_path: Path, smollm2_gguf: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("readme", READMES)
def test_files_named_in_the_map_exist(readme: str) -> None:
    text = (ROOT / readme).read_text("utf-8")
    paths = re.findall(r"^\| `([^`]+)` \|", text, re.M)
    assert paths
    for path in paths:
        assert (ROOT / path).exists(), path


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("target", ["demo", "test", "lint"])
def test_make_knows_its_targets(target: str) -> None:
    done = subprocess.run(
        ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
