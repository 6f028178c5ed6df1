"""gateup.check: what deep=True needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gateup
from gateup.deep import check
from gateup.errors import UsageError
from tests.deep.models import Tensors, edited


def test_without_torch_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as e:
        gateup.check("smollm2", deep=True)
    assert str(e.value) == (
        "checks that read weights need torch and tokenizers: not installed\n"
        '  remedy: pip install "gateup[torch]"'
    )


def test_the_command(trained: Path, tmp_path: Path) -> None:
    """Nothing but JSON on stdout, nothing on a stderr that is no terminal, 1 for errors."""

    def spoil(tensors: Tensors) -> None:
        tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = float("nan")

    folder = edited(trained, tmp_path / "m", spoil)
    done = subprocess.run(
        [sys.executable, "-m", "gateup", "check", str(folder), "--deep", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert (done.returncode, done.stderr) == (1, "")
    document = json.loads(done.stdout)
    assert [f["rule"] for f in document["findings"] if f["severity"] == "error"] == [
        "deep.nan_weights"
    ]
