"""What a call costs beside its arithmetic: the gated MLP of one token, eager and as a custom op.

    python benchmarks/overhead.py [--rounds 15]

Eager code calls our kernels directly; tracers see a torch custom op of the same kernels. `stock` is
transformers' five operations. Microseconds a call: medians over the rounds, the variants taking
turns, with the quartiles' distance. The last line is the same as JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from gateup.ops.gated_mlp import Weights, gated_mlp
from gateup.ops.kernel import Call, Keep
from gateup.ops.operands import Operands

HIDDEN, WIDTH = 64, 128  # small enough for the arithmetic not to count
CALLS = 300


def variants() -> dict[str, Callable[[], object]]:
    x = torch.randn(1, HIDDEN)
    gate, up, down = (torch.randn(s) for s in ((WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH)))
    weights = Weights(gate, up, down)
    operands = Operands(gate, up, down, None, None, None)
    call, keep = Call("split", "silu", False, 0, None), list(Keep(False, False, False))
    return {
        "stock": lambda: F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down),
        "eager": lambda: gated_mlp(x, weights),
        "custom op": lambda: torch.ops.gateup.mlp(x, *operands, *call, keep),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    times: dict[str, list[float]] = {}
    with torch.no_grad():
        calls = variants()
        for index in range(rounds + 1):
            for name, call in calls.items():
                start = time.perf_counter()
                for _ in range(CALLS):
                    call()
                if index:
                    times.setdefault(name, []).append((time.perf_counter() - start) / CALLS * 1e6)
    rows = {}
    for name, values in times.items():
        low, middle, high = statistics.quantiles(values, n=4)
        rows[name] = {"us": middle, "spread": high - low}
        print(f"{name:10} {middle:7.1f} µs ± {(high - low) / 2:.1f}")
    machine = platform.processor() or platform.machine()
    print(json.dumps({"benchmark": "overhead", "machine": machine, "rows": rows}))


if __name__ == "__main__":
    main()
