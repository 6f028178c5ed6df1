"""FFNs in one format after another: our kernels, the peers, and the roofline, cell by cell."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gateup
from gateup.bench.blocks import row_nbytes
from gateup.bench.machine import Peaks
from gateup.bench.protocol import Cell, ended
from gateup.errors import UsageError

# name -> (module, arguments, the package it needs). gateup first: ratios are to it.
IMPLEMENTATIONS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "gateup": ("ours", (), "torch"),
    "torch": ("torch_eager", (), "torch"),
    "ggml": ("ggml", (), "llama_cpp"),
    "ggml repacked": ("ggml", ("CPU_REPACK",), "llama_cpp"),
    "ONNX Runtime": ("onnxruntime_nbits", (), "onnxruntime"),
    "OpenVINO bf16": ("openvino_ffn", ("bf16",), "openvino"),
    "OpenVINO int8": ("openvino_ffn", ("int8",), "openvino"),
    "OpenVINO int8, g128": ("openvino_ffn", ("int8-128",), "openvino"),
}
OURS = "gateup"
# Measured and shown, but no rival: its weights are coarser (4.125 bits) than the format they stand
# beside (4.5 bits, a scale per 32).
COARSER = ("OpenVINO int8, g128",)
# Copies of the weights used in turn hold at least this much together: more than caches keep.
ROTATE_BYTES = 600_000_000
# Of a small FFN more copies would take longer to make than to measure.
MOST_COPIES = 128
# From so many times the limit's speed on the limit is wrong, or is not of this.
BEYOND = 1.05
# A turn takes about this long, one call at least.
TURN_SECONDS = 0.15
# What takes longer a call than this is measured in this many turns: its spread is small.
SLOW_SECONDS, SLOW_TURNS = 0.5, 2


@dataclass(frozen=True)
class Timing:
    """Seconds a call: the median over turns, and the quartiles' distance."""

    name: str
    seconds: float
    spread: float


@dataclass(frozen=True)
class CellResult:
    """One format at one T. `limit`: the roofline's seconds."""

    kind: str
    tokens: int
    limit: float
    timings: tuple[Timing, ...]

    def of(self, name: str) -> Timing | None:
        return next((t for t in self.timings if t.name == name), None)

    @property
    def beyond(self) -> tuple[str, ...]:
        """Names of those faster than the limit by more than the peaks vary from run to run."""
        return tuple(t.name for t in self.timings if t.seconds * BEYOND < self.limit)

    @property
    def fastest_peer(self) -> Timing | None:
        """Of those whose weights are as fine as the format's."""
        peers = [t for t in self.timings if t.name not in (OURS, *COARSER)]
        return min(peers, key=lambda t: t.seconds) if peers else None


@dataclass(frozen=True)
class Asked:
    """What to measure: FFNs of [width, hidden] in `kinds` at `tokens`, with which rivals.

    peers_python  the Python in whose environment the peers are; None: this one
    """

    hidden: int
    width: int
    kinds: tuple[str, ...]
    tokens: tuple[int, ...]
    threads: int
    turns: int = 5
    peers: bool = True
    peers_python: Path | None = None

    @property
    def operations(self) -> int:
        """Per token: three products, a multiply-add counting two."""
        return 6 * self.hidden * self.width

    def nbytes(self, kind: str) -> int:
        """Of the weights as a file stores them."""
        rows = 2 * self.width * row_nbytes(kind, self.hidden)
        return rows + self.hidden * row_nbytes(kind, self.width)


class Process:
    """A worker of `gateup.bench.peers` in its own process."""

    def __init__(self, name: str, asked: Asked) -> None:
        module, arguments, _ = IMPLEMENTATIONS[name]
        python = sys.executable
        if asked.peers_python is not None and name != OURS:
            python = str(asked.peers_python)
        source = str(Path(gateup.__file__).parent.parent)
        environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": str(asked.threads)}
        self.name = name
        self._child = subprocess.Popen(
            [python, "-m", f"gateup.bench.peers.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )

    def ask(self, **question: Any) -> dict[str, Any]:
        """The answer; {"error": …} also where the process is gone."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._signal("SIGCONT")
        try:
            self._child.stdin.write(json.dumps(question) + "\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            package = IMPLEMENTATIONS[self.name][2]
            code = self._child.wait()
            by_itself = f"it ended with status {code} ({package} not installed, or not for this)"
            return {"error": ended(code) or by_itself}
        self._signal("SIGSTOP")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _signal(self, name: str) -> None:
        """Threads of some libraries (ONNX Runtime's for one) wait busily also between calls, which
        serves them in their own turn, and would slow the others down in theirs."""
        number = getattr(signal, name, None)
        if number is not None:
            self._child.send_signal(number)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill it; a second time does nothing."""
        self._child.kill()
        if self._child.stdout is not None and not self._child.stdout.closed:
            self._child.communicate()


def run(asked: Asked, peaks: Peaks, note: Callable[[str], None]) -> Iterator[CellResult]:
    """Every cell as it is measured; `note` gets a line for each rival that cannot take part.

    Raises UsageError when our own kernels fail.
    """
    for kind in asked.kinds:
        with ExitStack() as stack:
            processes = _prepared(asked, kind, stack, note)
            for tokens in asked.tokens:
                timings = _time(asked, kind, tokens, processes, note)
                limit = peaks.seconds(kind, asked.nbytes(kind), asked.operations * tokens)
                cell = CellResult(kind, tokens, limit, timings)
                if cell.beyond:
                    note(f"{kind}, T={tokens}: {_beyond(cell, asked)}")
                yield cell


def _beyond(cell: CellResult, asked: Asked) -> str:
    """Why a time can be below the limit."""
    if MOST_COPIES * asked.nbytes(cell.kind) < ROTATE_BYTES:
        why = "weights as few as these stay in the caches"
    else:
        why = "something else ran while the peaks were measured; measure again"
    return f"faster than the limit ({', '.join(cell.beyond)}): {why}"


def _prepared(
    asked: Asked, kind: str, stack: ExitStack, note: Callable[[str], None]
) -> list[Process]:
    """The implementations that can take part, each in its process, which ends with `stack`."""
    copies = min(MOST_COPIES, max(2, -(-ROTATE_BYTES // asked.nbytes(kind))))
    cell = Cell(kind, asked.hidden, asked.width, asked.threads, copies, asked.tokens)
    processes = []
    for name in IMPLEMENTATIONS if asked.peers else (OURS,):
        process = stack.enter_context(Process(name, asked))
        answer = process.ask(do="prepare", **vars(cell))
        if "error" not in answer:
            processes.append(process)
        elif name == OURS:
            raise UsageError(f"{kind} cannot be measured: {answer['error']}")
        else:
            note(f"{kind}: without {name}: {answer['error']}")
            process.end()
    return processes


def _time(
    asked: Asked,
    kind: str,
    tokens: int,
    processes: list[Process],
    note: Callable[[str], None],
) -> tuple[Timing, ...]:
    """Turn by turn, so that what else the machine does meets all alike; one that fails leaves."""
    calls: dict[str, int] = {}
    seconds: dict[str, list[float]] = {process.name: [] for process in processes}

    def ask(process: Process, **question: Any) -> Any:
        """Seconds; None where it fails."""
        answer = process.ask(tokens=tokens, **question)
        if "error" not in answer:
            return answer["seconds"]
        note(f"{kind}, T={tokens}: {process.name}: {answer['error']}")
        processes.remove(process)
        process.end()
        del seconds[process.name]
        return None

    for process in list(processes):
        once = ask(process, do="warm")
        if once is not None:
            calls[process.name] = max(1, min(100, int(TURN_SECONDS / max(once, 1e-6))))
    for _ in range(asked.turns):
        for process in list(processes):
            done = seconds[process.name]
            if len(done) >= SLOW_TURNS and statistics.median(done) > SLOW_SECONDS:
                continue
            took = ask(process, do="time", calls=calls[process.name])
            if took is not None:
                done.append(statistics.median(took))
    return tuple(_timing(name, values) for name, values in seconds.items())


def _timing(name: str, values: Sequence[float]) -> Timing:
    if len(values) < 2:
        return Timing(name, values[0], 0.0)
    low, middle, high = statistics.quantiles(values, n=4)
    return Timing(name, middle, high - low)
