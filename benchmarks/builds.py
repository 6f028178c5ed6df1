"""Two builds of the kernels beside each other: what a change of csrc/ is worth.

    git worktree add ../before COMMIT   (build it there: pip's editable install, or cmake)
    python benchmarks/builds.py before=../before after=. --shape 4096x14336 \
        --formats bf16,q4_k --tokens 1,8,64 --threads 2 --turns 5

Each build computes FFNs in a process of its own, in turns, on the same random weights and rows;
while one works the other is stopped. Prints medians in ms, after / before, and whether the bits
of the results are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

COLD = 600_000_000  # bytes of all copies together: more than any last-level cache


class Build:
    def __init__(self, name: str, checkout: Path) -> None:
        self.name = name
        source = checkout.resolve() / "src"
        if not list(source.glob("gateup/_native*")):
            sys.exit(f"{source}/gateup has no _native extension: build it there first")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateup.bench.peers.ours"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(source)},
        )

    def ask(self, **question: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended: what it said is above")
        answer = json.loads(line)
        self.process.send_signal(signal.SIGSTOP)
        if "error" in answer:
            sys.exit(f"{self.name}: {answer['error']}")
        return next(iter(answer.values()))


def compare(builds: list[Build], tokens: int, turns: int, copies: int) -> None:
    results = [b.ask(do="check", tokens=tokens) for b in builds]
    for build in builds:
        build.ask(do="time", tokens=tokens, calls=copies)  # touches each copy
    times: dict[str, list[float]] = {b.name: [] for b in builds}
    for _ in range(turns):
        for build in builds:
            times[build.name] += build.ask(do="time", tokens=tokens, calls=3)
    medians = [statistics.median(times[b.name]) for b in builds]
    bits = "same" if all(r == results[0] for r in results) else "DIFFERENT"
    row = "  ".join(f"{b.name} {m * 1e3:.2f}" for b, m in zip(builds, medians, strict=True))
    print(f"  T {tokens}: {row}  ratio {medians[-1] / medians[0]:.2f}  bits {bits}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("builds", nargs=2, metavar="NAME=CHECKOUT")
    parser.add_argument("--shape", default="4096x14336")
    parser.add_argument("--formats", default="bf16")
    parser.add_argument("--tokens", default="1,8,64")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    hidden, width = map(int, args.shape.split("x"))
    tokens = [int(t) for t in args.tokens.split(",")]
    for kind in args.formats.split(","):
        builds = [Build(*_named(text)) for text in args.builds]
        # One byte a weight is enough to count by: bf16 has two, four-bit formats half of one.
        copies = max(2, -(-COLD // (3 * hidden * width)))
        for build in builds:
            build.ask(
                do="prepare",
                kind=kind,
                hidden=hidden,
                width=width,
                threads=args.threads,
                copies=copies,
                tokens=tokens,
            )
        print(f"{kind}, {args.shape}, {args.threads} threads, ms", flush=True)
        for count in tokens:
            compare(builds, count, args.turns, copies)
        for build in builds:
            build.process.kill()
            build.process.wait()


def _named(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    return name, Path(path)


if __name__ == "__main__":
    main()
