"""Ctrl-C in the middle of a verdict: nothing of the judge runs on, and its folder is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateup.practice.sandbox import guards, keeper

pytestmark = pytest.mark.skipif(not guards.LINUX, reason="looks into /proc")


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"  # a zombie is its new parent's to collect


def test_ctrl_c_during_a_verdict_leaves_nothing(tmp_path: Path) -> None:
    code = tmp_path / "silu.py"
    code.write_text("import time\ndef silu(x):\n    time.sleep(60)\n")
    folders = tmp_path / "tmp"
    folders.mkdir(mode=0o711)
    tmp_path.chmod(0o711)
    process = subprocess.Popen(
        [sys.executable, "-m", "gateup", "practice", "test", "1", "--file", str(code)],
        env={**os.environ, "TMPDIR": str(folders), "XDG_DATA_HOME": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    below: list[int] = []
    for _ in range(300):  # the fork server, its keeper, the learner's process
        below = keeper._children(process.pid)
        if len(below) >= 3:
            break
        time.sleep(0.1)
    assert len(below) >= 3
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 130
    for _ in range(100):
        if not any(map(_runs, below)):
            break
        time.sleep(0.1)
    assert not any(map(_runs, below))
    assert not list(folders.iterdir())
