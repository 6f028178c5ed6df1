"""A whole model: how fast the engine reads a prompt and writes, beside the roofline and llama.cpp.

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

import gateup
from gateup.errors import UsageError

PROMPT, NEW = 512, 64
KINDS = ("int16", "int8")

_OURS = """
import json, sys, time
start = time.perf_counter()
import torch
torch.set_num_threads(int(sys.argv[2]))
import gateup
engine = gateup.load(sys.argv[1], ctx=int(sys.argv[3]) + int(sys.argv[4]) + 8,
                     activations=sys.argv[5])
loaded = time.perf_counter() - start
prompt, new = int(sys.argv[3]), int(sys.argv[4])
def run(prompt, new):
    session = engine.session()
    start = time.perf_counter()
    logits, _ = session.prefill([(7 * i + 11) % 1000 + 100 for i in range(prompt)])
    read = time.perf_counter()
    for _ in range(new):
        logits = session.step(int(logits.argmax()))
    return read - start, time.perf_counter() - read
run(16, 4)
read, wrote = run(prompt, new)
from gateup.engine.stats import peak_rss
print(json.dumps({"load_s": loaded, "prefill": prompt / read, "decode": new / wrote,
                  "peak_rss": peak_rss()}))
"""

_LLAMA = """
import json, sys, time
start = time.perf_counter()
import llama_cpp
prompt, new = int(sys.argv[3]), int(sys.argv[4])
model = llama_cpp.Llama(sys.argv[1], n_ctx=prompt + new + 8, n_threads=int(sys.argv[2]),
                        n_threads_batch=int(sys.argv[2]), verbose=False)
loaded = time.perf_counter() - start
def run(prompt, new):
    model.reset()
    start = time.perf_counter()
    model.eval([(7 * i + 11) % 1000 + 100 for i in range(prompt)])
    read = time.perf_counter()
    for _ in range(new):
        model.eval([model.sample(temp=0.0)])
    return read - start, time.perf_counter() - read
run(16, 4)
read, wrote = run(prompt, new)
peak = next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith("VmHWM"))
print(json.dumps({"load_s": loaded, "prefill": prompt / read, "decode": new / wrote,
                  "peak_rss": peak}))
"""


@dataclass(frozen=True)
class WholeResult:
    """Medians over the turns. Tokens per second, seconds with imports, bytes."""

    name: str
    prefill: float
    decode: float
    load_s: float
    peak_rss: int


def run(
    model: str, file: Path | None, *, threads: int, turns: int, peers_python: Path | None,
    note: Callable[[str], None],
) -> list[WholeResult]:  # fmt: skip
    """Ours first, then llama.cpp on `file` (None: the model is not one GGUF). Turn by turn.

    Raises UsageError naming what went wrong when ours does not run.
    """
    ours = {f"gateup, {kind} activations": (_OURS, model, sys.executable, kind) for kind in KINDS}
    scripts = dict(ours)
    if file is None:
        note("without llama.cpp: the model is not one GGUF file")
    else:
        scripts["llama.cpp"] = (_LLAMA, str(file), str(peers_python or sys.executable), "")
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(turns):
        for name, (script, ref, python, kind) in list(scripts.items()):
            answer = _child([python, "-c", script, ref], kind, threads)
            if isinstance(answer, dict):
                found.setdefault(name, []).append(answer)
                continue
            del scripts[name]
            if name in ours:
                raise UsageError(f"the engine does not run it: {answer}")
            note(f"without {name}: {answer}")
    return [_result(name, rows) for name, rows in found.items()]


def _child(begin: list[str], kind: str, threads: int) -> dict[str, float] | str:
    """What the script measured, or the last line of its complaint."""
    source = str(Path(gateup.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": str(threads)}
    command = [*begin, str(threads), str(PROMPT), str(NEW), kind]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode == 0 and done.stdout.strip():
        answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return answer
    lines = done.stderr.strip().splitlines()
    return lines[-1][:300] if lines else f"it ended with status {done.returncode}"


def _result(name: str, rows: list[dict[str, float]]) -> WholeResult:
    prefill, decode, load_s, peak = (
        statistics.median(row[key] for row in rows)
        for key in ("prefill", "decode", "load_s", "peak_rss")
    )
    return WholeResult(name, prefill, decode, load_s, int(peak))
