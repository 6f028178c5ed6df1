"""Time the bf16 MLP's forward with rounding "wide" and "hf" beside torch eager.

    python benchmarks/wide.py [--shape HxI ...] [--tokens T ...] [--isa NAME] [--threads N]
                              [--rounds 9] [--processor-time]

Weights rotate among copies that exceed the caches. The variants of a cell take turns; medians
and the quartiles' distance over the rounds. With --processor-time a thread's own time counts, as
it must on a machine that others use (one thread). The last line is the same as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from gateup.account import machine
from gateup.ops import native
from gateup.ops.gated_mlp import Weights, gated_mlp
from gateup.ops.options import MLPOptions

SHAPES = ("576x1536", "1024x3072", "4096x14336")
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
WEIGHT_BYTES = 1 << 30
ROUND_SECONDS = 0.01


def copies(hidden: int, width: int) -> list[Weights]:
    count = max(1, min(64, WEIGHT_BYTES // (6 * hidden * width)))
    shapes = ((width, hidden), (width, hidden), (hidden, width))
    return [
        Weights(*(torch.empty(s, dtype=torch.bfloat16).normal_(std=s[1] ** -0.5) for s in shapes))
        for _ in range(count)
    ]


def variants(x: Tensor, weights: Iterator[Weights]) -> dict[str, Callable[[], Tensor]]:
    def eager() -> Tensor:
        gate, up, down, *_ = next(weights)
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    def ours(rounding: str) -> Callable[[], Tensor]:
        options = MLPOptions(rounding=rounding)  # type: ignore[arg-type]
        return lambda: gated_mlp(x, next(weights), options=options)

    return {"eager": eager, "hf": ours("hf"), "wide": ours("wide")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", nargs="+", default=SHAPES)
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS)
    parser.add_argument("--isa")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.isa:
        native.extension().use_isa(options.isa)
    clock = time.thread_time if options.processor_time else time.perf_counter
    where = {
        "processor": machine.probe().name,
        "threads": options.threads,
        "torch": torch.__version__,
        "native": str(native.status()),
    }
    for key, value in where.items():
        print(f"{key}: {value}")
    print(f"\n{'H × I':>14}{'T':>6}  {'variant':<8}{'ms':>10}{'±':>9}{'× eager':>9}{'GFLOP/s':>9}")
    rows = []
    with torch.no_grad():
        for shape in options.shape:
            hidden, width = map(int, shape.split("x"))
            weights = itertools.cycle(copies(hidden, width))
            for tokens in options.tokens:
                x = torch.randn(tokens, hidden).bfloat16()
                calls = variants(x, weights)
                times: dict[str, list[float]] = {name: [] for name in calls}
                start = clock()
                calls["eager"]()
                repeats = max(1, int(ROUND_SECONDS / max(clock() - start, 1e-7)))
                for turn in range(options.rounds + 1):
                    for name, call in calls.items():
                        start = clock()
                        for _ in range(repeats):
                            call()
                        if turn:
                            times[name].append((clock() - start) / repeats)
                eager = statistics.median(times["eager"])
                for name, measured in times.items():
                    median = statistics.median(measured)
                    low, _, high = statistics.quantiles(measured, n=4)
                    flops = 6 * hidden * width * tokens / median
                    print(
                        f"{hidden:>6} × {width:<5}{tokens:>6}  {name:<8}{median * 1e3:10.3f}"
                        f"{(high - low) * 1e3:9.3f}{median / eager:9.2f}{flops / 1e9:9.0f}",
                        flush=True,
                    )
                    rows.append(
                        {"shape": shape, "tokens": tokens, "variant": name, "seconds": median,
                         "spread": high - low, "of_eager": median / eager}
                    )  # fmt: skip
    print(json.dumps({**where, "rows": rows}))


if __name__ == "__main__":
    main()
