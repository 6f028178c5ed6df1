"""Wall time and peak memory of whole `gateup` commands, each in fresh processes.

    python benchmarks/plan_speed.py [--runs 7]

Prints a table of medians and spread; the last line is JSON. The aim: under 1 s wall, imports
included, and under 150 MB, on 2 cores. `benchmarks/headers.py` does the same for a checkpoint of
673 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

COMMANDS = (
    "--version",
    "plan llama-3-8b",
    "plan smollm2",
    "plan llama-3-8b --quant q4_k_m --ctx 32768 --device 8GB",
    "plan qwen3-30b-a3b --tp 2 --json",
    "plan deepseek-v3 --html {folder}/plan.html",
    "plan llama-3-8b --train lora --rank 16 --targets all --seq 8192 --device 24GB",
    "plan llama-3-8b qwen3-8b mixtral-8x7b gpt2",
    "show smollm2",
)

# Runs the command in this process and reports its own peak: ru_maxrss of a forked child would
# start at its parent's.
CHILD = """
import contextlib, sys
sys.argv[0] = "gateup"
from gateup.cli import main
with contextlib.suppress(SystemExit):
    main()
status = open("/proc/self/status").read()
print(status.split("VmHWM:")[1].split()[0], file=sys.stderr)
"""


def run(command: str, folder: str) -> tuple[float, int]:
    """Seconds and peak bytes of one fresh process."""
    argv = command.format(folder=folder).split()
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *argv], capture_output=True, text=True, check=True
    )
    return time.perf_counter() - start, int(done.stderr.split()[-1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    rows = []
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {runs} runs each")
    print(f"{'command':78} {'median':>7} {'min':>7} {'max':>7} {'peak':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            got = [run(command, folder) for _ in range(runs)]
            seconds = [s for s, _ in got]
            row = {
                "command": "gateup " + command.replace("{folder}/", ""),
                "median_s": round(statistics.median(seconds), 3),
                "min_s": round(min(seconds), 3),
                "max_s": round(max(seconds), 3),
                "peak_bytes": max(p for _, p in got),
            }
            rows.append(row)
            print(
                f"{row['command']:78} {row['median_s']:6.2f}s {row['min_s']:6.2f}s "
                f"{row['max_s']:6.2f}s {row['peak_bytes'] / 1e6:6.1f}MB"
            )
    print(json.dumps({"benchmark": "plan_speed", "runs": runs, "rows": rows}))


if __name__ == "__main__":
    main()
