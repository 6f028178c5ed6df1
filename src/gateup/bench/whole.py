"""A whole model: how fast the engine reads a prompt and writes, beside llama.cpp.

Each measurement is a fresh process; llama.cpp takes part where llama-cpp-python is installed and
the model is one GGUF.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gateup
from gateup.bench.protocol import ended
from gateup.errors import UsageError

PROMPT, NEW = 512, 64

# name -> (module of gateup.bench.peers, its way). Ours are those of `our_engine`.
OURS = "our_engine"
ENGINES: dict[str, tuple[str, str]] = {
    "gateup, int16 activations": (OURS, "int16"),
    "gateup, int8 activations": (OURS, "int8"),
    "llama.cpp": ("llama_cpp_c", "repack"),
    "llama.cpp, weights not repacked": ("llama_cpp_c", "plain"),
}


@dataclass(frozen=True)
class WholeResult:
    """Medians over the turns. Tokens per second, seconds with imports, bytes.

    prefill_parts, decode_parts  of the fastest turn: seconds a token by what they went to
    """

    name: str
    prefill: float
    decode: float
    load_s: float
    peak_rss: int
    prefill_parts: dict[str, float]
    decode_parts: dict[str, float]


def run(
    model: str, file: Path | None, *, threads: int, turns: int, peers_python: Path | None,
    note: Callable[[str], None],
) -> list[WholeResult]:  # fmt: skip
    """Ours first, then llama.cpp on `file` (None: ours alone). Turn by turn.

    Raises UsageError naming what went wrong when ours does not run.
    """
    left = {n: e for n, e in ENGINES.items() if file is not None or e[0] == OURS}
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(turns):
        for name, (module, way) in list(left.items()):
            ours = module == OURS
            python = sys.executable if ours else str(peers_python or sys.executable)
            command = [python, "-m", f"gateup.bench.peers.{module}", model if ours else str(file)]
            answer = _child([*command, str(threads), str(PROMPT), str(NEW), way], threads)
            if isinstance(answer, dict):
                found.setdefault(name, []).append(answer)
                continue
            del left[name]
            if ours:
                raise UsageError(f"the engine does not run it: {answer}")
            note(f"without {name}: {answer}")
    return [_result(name, rows) for name, rows in found.items()]


def _child(command: list[str], threads: int) -> dict[str, Any] | str:
    """What it measured, or the last line of its complaint."""
    source = str(Path(gateup.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode == 0 and done.stdout.strip():
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer
    crashed = ended(done.returncode)
    if crashed is not None:  # what it wrote before does not say why
        return crashed
    lines = done.stderr.strip().splitlines()
    return lines[-1][:300] if lines else f"it ended with status {done.returncode}"


def _result(name: str, rows: list[dict[str, Any]]) -> WholeResult:
    prefill, decode, load_s, peak = (
        statistics.median(row[key] for row in rows)
        for key in ("prefill", "decode", "load_s", "peak_rss")
    )
    read, wrote = (max(rows, key=lambda row: row[key]) for key in ("prefill", "decode"))
    return WholeResult(
        name, prefill, decode, load_s, int(peak), read["prefill_parts"], wrote["decode_parts"]
    )
