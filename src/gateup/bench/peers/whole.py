"""One measurement of a whole model, in a process of its own; the result is a line of JSON.

    python -m gateup.bench.peers.<module> MODEL THREADS PROMPT NEW WAY

An empty cache, PROMPT tokens in calls of 512, then NEW tokens one at a time, each the likeliest.
The same once before, unmeasured: pages come in, threads start, graphs are made.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

CALL = 512
# New tokens of the run before.
WARM = 4


class Model(Protocol):
    """What is measured."""

    def clear(self) -> None:
        """Empty the cache."""

    def feed(self, ids: list[int]) -> int:
        """The likeliest token behind all so far."""

    def parts(self) -> dict[str, float]:
        """Seconds so far, by what they went to; {} where nobody counts."""


def prompt_ids(count: int) -> list[int]:
    """The same in every process; every vocabulary has them."""
    return [(7 * i + 11) % 1000 + 100 for i in range(count)]


def measure(start: Callable[[str, int, int, str], Model], began: float) -> None:
    """`start(model, threads, tokens of the cache, way)` loads; `began`: time before the imports."""
    path, threads, prompt, new, way = sys.argv[1:6]
    model = start(path, int(threads), int(prompt) + int(new) + 16, way)
    loaded = time.perf_counter() - began
    _run(model, int(prompt), WARM)
    print(json.dumps({"load_s": loaded, **_run(model, int(prompt), int(new)), "peak_rss": _peak()}))


def _run(model: Model, prompt: int, new: int) -> dict[str, object]:
    model.clear()
    ids, before = prompt_ids(prompt), model.parts()
    start = time.perf_counter()
    for at in range(0, prompt, CALL):
        token = model.feed(ids[at : at + CALL])
    middle, between = time.perf_counter(), model.parts()
    for _ in range(new):
        token = model.feed([token])
    end, after = time.perf_counter(), model.parts()
    return {
        "prefill": prompt / (middle - start),
        "decode": new / (end - middle),
        "prefill_parts": {k: (between[k] - before[k]) / prompt for k in after},
        "decode_parts": {k: (after[k] - between[k]) / new for k in after},
    }


def _peak() -> int:
    """Most bytes that were resident; 0 where the system does not say."""
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(x.split()[1]) * 1024 for x in lines if x.startswith("VmHWM")), 0)
