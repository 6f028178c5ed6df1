"""What `gateup check --deep` takes and finds on a model: python benchmarks/deep.py [MODEL]

The loss of each order of gate and up, the largest activations, seconds and peak memory.
"""

from __future__ import annotations

import json
import sys
import time
from math import log
from statistics import median

import torch

import gateup
from gateup.engine.stats import peak_rss

RUNS = 3


def main(model: str) -> None:
    floor = peak_rss()
    seconds = []
    for _ in range(RUNS):
        start, used = time.perf_counter(), time.process_time()
        report = gateup.check(model, deep=True)
        seconds.append((time.perf_counter() - start, time.process_time() - used))
    context = report.context
    assert context is not None
    assert context.trial is not None, report.skipped
    assert context.scan is not None
    trial = context.trial
    print(f"{report.name}: {report.count('error')} errors, {report.count('warning')} warnings")
    for order in trial.orders:
        print(f"  {order.words}: {order.loss:.3f} nats a token over {trial.tokens} tokens")
    print(f"  guessing: {log(trial.vocab):.3f}")
    top = max(trial.layers, key=lambda x: max(x.h_max, x.out_max))
    print(f"  layer {top.layer}: largest |h| {top.h_max:,.1f}, largest |output| {top.out_max:,.1f}")
    flat = max(trial.layers, key=lambda x: (x.open + x.shut) / max(x.width, 1))
    share = (flat.open + flat.shut) / flat.width
    print(f"  layer {flat.layer}: {share:.2%} of the gates on one flat side throughout")
    wall, cpu = (median(x) for x in zip(*seconds, strict=True))
    peak = peak_rss()
    print(
        f"  {wall:.2f} s ({min(w for w, _ in seconds):.2f} to {max(w for w, _ in seconds):.2f}),"
        f" {cpu:.2f} s of processor time; peak {peak / 1e6:,.0f} MB, {(peak - floor) / 1e6:,.0f} MB"
        " above Python and torch"
    )
    print(
        json.dumps(
            {
                "model": report.name,
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "seconds": [w for w, _ in seconds],
                "cpu_seconds": [c for _, c in seconds],
                "peak_bytes": peak,
                "losses": {o.key: o.loss for o in trial.orders},
                "tensors": context.scan.tensors,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
