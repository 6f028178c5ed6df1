"""The judge as an ordinary user has it: no other uid to become, namespaces of the user's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateup.practice.exercise import find
from tests.practice.test_judge_hostile import ANSWER, BOMB, KILLER

SCRIPT = """
import json, sys
from dataclasses import replace
from gateup.practice.exercise import Limits, find
from gateup.practice.judge import Judge
asked = json.load(sys.stdin)
exercise = replace(find("silu"), limits=Limits(0.3, 256))
with Judge(without=asked["without"]) as judge:
    told = [judge.judge(exercise, source, seed=1).to_dict() for source in asked["sources"]]
    alive = judge.warm("numpy").alive()
json.dump({"told": told, "alive": alive}, sys.stdout)
"""
# Reading stays possible where Python lies in root's home; nothing else of root's does.
AS_NOBODY = [
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"),
    *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"),
    "--bounding-set=-all,+dac_read_search",
]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="the other tests run as an ordinary user, or setpriv is not there",
)


def _judged(sources: list[str], without: list[str], tmp_path: Path) -> dict[str, Any]:
    tmp_path.chmod(0o777)
    ran = subprocess.run(
        [*AS_NOBODY, sys.executable, "-c", SCRIPT],
        input=json.dumps({"sources": sources, "without": without}),
        env={**os.environ, "TMPDIR": "/tmp", "HOME": "/nonexistent"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout)
    return told


READS = f"""
try: print("read", open({str(find("silu").folder / "solution.py")!r}).read())
except OSError: print("hidden")
"""


NAMESPACES = ["network", "processes", "mounts"]


@pytest.mark.parametrize("without", [[], NAMESPACES, [*NAMESPACES, "calls"]])
def test_an_ordinary_user_is_guarded_too(without: list[str], tmp_path: Path) -> None:
    sources = [find("silu").solution(), KILLER + READS + ANSWER, BOMB]
    judged = _judged(sources, without, tmp_path)
    good, killer, bomb = judged["told"]
    assert good["passed"]
    assert not killer["passed"]
    assert not bomb["passed"]
    assert "killed" not in killer["output"]
    assert killer["output"].endswith("hidden\n")
    if "calls" not in without:
        assert killer["output"] == "hidden\n"
    assert judged["alive"]
    states = {guard["name"]: guard["in_force"] for guard in good["guards"]}
    assert not states["uid"]
    assert states["limits"]
    assert not any(states[guard] for guard in without)
