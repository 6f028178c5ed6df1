"""Seconds from a submission to its verdict: with a fork server to start, and with one that runs.

The first exercise that needs numpy alone and the first that needs torch, their own solutions.

    python benchmarks/practice_verdict.py
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gateup.practice.exercise import Exercise, exercises
from gateup.practice.judge import Judge

COLD, WARM = 5, 40


def cold(exercise: Exercise) -> list[float]:
    """Verdicts of judges that were just made: the libraries have to load."""
    taken = []
    for _ in range(COLD):
        with Judge() as judge:
            taken.append(judge.judge(exercise, exercise.solution()).seconds)
    return taken


def warm(exercise: Exercise) -> list[float]:
    """Verdicts of one judge, after its first."""
    with Judge() as judge:
        judge.judge(exercise, exercise.solution())
        return [judge.judge(exercise, exercise.solution()).seconds for _ in range(WARM)]


def command(exercise: Exercise) -> list[float]:
    """The whole of `gateup practice test`, with Python's own start."""
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "solution.py"
        path.write_text(exercise.solution(), encoding="utf-8")
        words = ["-m", "gateup", "practice", "test", exercise.name, "--file", str(path)]
        environment = {**os.environ, "XDG_DATA_HOME": folder}
        for _ in range(COLD):
            begun = time.perf_counter()
            subprocess.run(
                [sys.executable, *words], env=environment, check=True, stdout=subprocess.DEVNULL
            )
            taken.append(time.perf_counter() - begun)
    return taken


def main() -> None:
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores; median (least to most)")
    found = {}
    for needs in ("numpy", "torch"):
        exercise = next(e for e in exercises() if e.needs == needs)
        for name, measure in (("command", command), ("cold", cold), ("warm", warm)):
            taken = measure(exercise)
            middle = statistics.median(taken)
            found[f"{needs} {name}"] = round(middle, 4)
            print(
                f"{needs:6} {name:8} {middle:7.3f} s ({min(taken):.3f} to {max(taken):.3f})  "
                f"{exercise.name}, {len(taken)} verdicts"
            )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
