"""One implementation in a process of its own, driven line by line: so that nobody's threads wait
busily on another's cores, and a peer that crashes takes nothing with it.

The child reads one JSON object a line and answers with one:
    {"do": "prepare", "kind", "hidden", "width", "threads", "copies", "tokens"} -> {"ok": ...}
    {"do": "warm", "tokens"}           -> {"seconds": ...}  of the last call
    {"do": "time", "tokens", "calls"}  -> {"seconds": [...]}
    {"do": "check", "tokens"}          -> {"y": [[...]]}   results of a known x, for comparison
    {"do": "quit"}
`copies` sets of weights are used in turn, so that none is left in the caches. "warm" uses each
of them: the first call makes ggml's graph, and took OpenVINO 310 ms where others take it 7.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gateup.errors import GateupError

Floats = NDArray[np.float32]
# From so many rows on multiplying takes longer than reading weights: two copies will do.
MANY_ROWS = 256


@dataclass(frozen=True)
class Cell:
    """An FFN of [width, hidden], [width, hidden] and [hidden, width] in one format."""

    kind: str
    hidden: int
    width: int
    threads: int
    copies: int
    tokens: tuple[int, ...]


class Implementation(Protocol):
    """What a worker module's `Worker` class does."""

    label: str

    def prepare(self, cell: Cell) -> None:
        """Make the weights. Raises GateupError where this cannot be done here."""

    def inputs(self, x: Floats) -> Any:
        """x [T, H] as the implementation takes it."""

    def run(self, copy: int, x: Any) -> Any:
        """y [T, H] by the copy's weights, finished when it returns."""

    def result(self, y: Any) -> Floats:
        """y as float32."""


def ended(status: int) -> str | None:
    """In words, how a process ended that a signal ended: it crashed, or was killed. None where it
    ended by itself."""
    if status >= 0:
        return None
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if name == "SIGKILL":
        return "it was killed (SIGKILL), as the system does when memory runs out"
    return f"it crashed ({name})"


def inputs(tokens: int, hidden: int) -> Floats:
    """The x that all implementations get."""
    generator = np.random.default_rng(tokens)
    return generator.standard_normal((tokens, hidden), np.float32)


def serve(implementation: Implementation) -> None:
    """Answer stdin until it ends."""
    # What libraries print must not get between the answers.
    answers = sys.stdout
    sys.stdout = sys.stderr
    cell: Cell | None = None
    turn = 0
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "quit":
            return
        try:
            if asked["do"] == "prepare":
                cell = Cell(**{k: v for k, v in asked.items() if k != "do"})
                implementation.prepare(cell)
                answer: dict[str, Any] = {"ok": implementation.label}
            else:
                assert cell is not None
                x = implementation.inputs(inputs(asked["tokens"], cell.hidden))
                copies = cell.copies if asked["tokens"] < MANY_ROWS else min(2, cell.copies)
                if asked["do"] == "check":
                    answer = {"y": implementation.result(implementation.run(0, x)).tolist()}
                elif asked["do"] == "warm":
                    for copy in range(copies):
                        start = time.perf_counter()
                        implementation.run(copy, x)
                        last = time.perf_counter() - start
                    answer = {"seconds": last}
                else:
                    seconds = []
                    for _ in range(asked["calls"]):
                        turn = (turn + 1) % copies
                        start = time.perf_counter()
                        implementation.run(turn, x)
                        seconds.append(time.perf_counter() - start)
                    answer = {"seconds": seconds}
        except (GateupError, RuntimeError, MemoryError, ImportError, ValueError) as error:
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
