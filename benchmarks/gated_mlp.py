"""The gated MLP's forward and training step: time, bytes saved and peak, beside its rivals.

    python benchmarks/gated_mlp.py [--shape llama-3-8b] [--tokens 128,1024] [--rounds 5]
                                   [--only "gate_up;input"] [--threads N] [--dtype bfloat16]

`stock` is what transformers computes, five operations of torch; `compile` is the same under
torch.compile; `liger` and `deepspeed` are their tiled MLPs, where installed and where they run on
this device. Ours by save mode, all in rounding "hf" unless they say wide.

The variants of a cell take turns. Times are medians over the rounds with the quartiles' distance,
as a ratio to stock in the same rounds. `saved` is what autograd keeps between forward and
backward beside weights and x. `transient` is the peak of one step above weights, weight gradients
and their float32 sums, x, y, dy and dx. The last line is the same as JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gateup.ops.gated_mlp import Weights, gated_mlp
from gateup.ops.options import MLPOptions
from gateup.ops.tally import LiveBytes, SavedBytes

# H, I
SHAPES = {"smollm2": (576, 1536), "qwen3-0.6b": (1024, 3072), "llama-3-8b": (4096, 14336)}
TOKENS = (128, 512, 2048, 16384)
TILE = 512
MODES: dict[str, MLPOptions] = {
    "all": MLPOptions(save="all"),
    "gate_up": MLPOptions(save="gate_up"),
    "input": MLPOptions(save="input"),
    f"input, tile {TILE}": MLPOptions(save="input", tile=TILE),
    "wide": MLPOptions(rounding="wide", save="gate_up"),
    f"wide, input, tile {TILE}": MLPOptions(rounding="wide", save="input", tile=TILE),
}
Forward = Callable[[Tensor], Tensor]


class Stock(nn.Module):
    """The MLP as transformers' Llama computes it."""

    def __init__(self, hidden: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False, dtype=dtype)
        self.up_proj = nn.Linear(hidden, width, bias=False, dtype=dtype)
        self.down_proj = nn.Linear(width, hidden, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    def weights(self) -> Weights:
        return Weights(self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)


def deepspeed_mlp(mlp: Stock) -> Forward | str:
    """DeepSpeed's TiledMLP over the same module, or why it cannot run."""
    try:
        module = importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp")
    except (ImportError, RuntimeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]

    def forward(x: Tensor) -> Tensor:
        shards = -(-x.shape[0] // TILE)
        run = module.TiledMLP.apply
        return run(Stock.forward, mlp, x[None], shards, list(mlp.parameters()))[0]

    return forward


def liger_mlp(mlp: Stock) -> Forward | str:
    """Liger's tiled SwiGLU over the same module, or why it cannot run."""
    try:
        module = importlib.import_module("liger_kernel.ops.tiled_mlp")
    except (ImportError, RuntimeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]

    def forward(x: Tensor) -> Tensor:
        shards = -(-x.shape[0] // TILE)
        return module.apply_tiled_mlp(
            fn=Stock.forward,
            mlp_module=mlp,
            x=x[None],
            num_shards=shards,
            compute_params=list(mlp.parameters()),
        )[0]

    return forward


def variants(mlp: Stock) -> dict[str, Forward | str]:
    """Every variant by name: a forward over `mlp`'s weights, or why it is left out."""
    found: dict[str, Forward | str] = {"stock": mlp}
    compiler = shutil.which("c++") or shutil.which("g++")
    found["compile"] = torch.compile(mlp, dynamic=True) if compiler else "no C++ compiler"
    for name, options in MODES.items():
        found[name] = lambda x, o=options: gated_mlp(x, mlp.weights(), options=o)
    found["deepspeed"], found["liger"] = deepspeed_mlp(mlp), liger_mlp(mlp)
    return found


def step(run: Forward, mlp: Stock, x: Tensor, dy: Tensor) -> Tensor:
    for weight in mlp.parameters():
        weight.grad = None
    x.grad = None
    y = run(x)
    y.backward(dy)
    return y


def works(run: Forward, mlp: Stock, x: Tensor) -> str | None:
    """None when a short step gives stock's gradients to about bf16's precision; or what came."""
    dy = torch.randn_like(x)
    step(mlp, mlp, x, dy)
    want = [p.grad.float() for p in mlp.parameters() if p.grad is not None]
    try:
        step(run, mlp, x, dy)
    except (RuntimeError, TypeError, ValueError, AttributeError, AssertionError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    for parameter, grad in zip(mlp.parameters(), want, strict=True):
        if parameter.grad is None:
            return "a weight got no gradient"
        if (parameter.grad.float() - grad).norm() > 0.02 * grad.norm():
            return "its gradients are not stock's"
    return None


@dataclass
class Memory:
    saved: int
    transient: int


def memory(run: Forward, mlp: Stock, x: Tensor, dy: Tensor) -> Memory:
    """Bytes saved, and the peak of a step without what any implementation holds."""
    for weight in mlp.parameters():
        weight.grad = None
    x.grad = None
    # Gradients of weights and their float32 sums, told by their size.
    elements = {p.numel() for p in mlp.parameters()}
    sizes = {n * size for n in elements for size in (x.element_size(), 4)}
    with SavedBytes(skip=[*mlp.parameters(), x]) as saved, LiveBytes(ignore=sizes) as live:
        y = run(x)
        kept = saved.nbytes
        saved.forget()
        y.backward(dy)
    return Memory(kept, live.peak - 2 * x.numel() * x.element_size())  # y and dx


def timed(call: Callable[[], object], seconds: float = 0.05) -> float:
    """Seconds a call, repeated until it took about `seconds`."""
    start = time.perf_counter()
    call()
    once = time.perf_counter() - start
    repeats = max(0, min(200, int(seconds / once) - 1))
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / (repeats + 1)


def quartiles(ratios: list[float]) -> tuple[float, float]:
    if len(ratios) < 2:
        return ratios[0], 0.0
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, high - low


def cell(runs: dict[str, Forward], mlp: Stock, tokens: int, rounds: int) -> list[dict[str, Any]]:
    """One row per variant at `tokens`."""
    hidden = mlp.gate_proj.in_features
    dtype = mlp.gate_proj.weight.dtype
    x = torch.randn(tokens, hidden).to(dtype).requires_grad_()
    dy = torch.randn(tokens, hidden).to(dtype)

    def forward(run: Forward) -> None:
        with torch.no_grad():
            run(x)

    times: dict[tuple[str, str], list[float]] = {}
    for index in range(rounds + 1):
        for name, run in runs.items():
            pair = {
                "forward": timed(lambda r=run: forward(r)),
                "step": timed(lambda r=run: step(r, mlp, x, dy)),
            }
            for what, seconds in pair.items():
                if index:  # the first round warms up: compiles, and fills the allocator
                    times.setdefault((name, what), []).append(seconds)
    rows = []
    for name, run in runs.items():
        row: dict[str, Any] = {"tokens": tokens, "variant": name}
        for what in ("forward", "step"):
            base = times["stock", what]
            row[f"{what}_ms"] = statistics.median(times[name, what]) * 1e3
            ratios = [a / b for a, b in zip(times[name, what], base, strict=True)]
            row[f"{what}_ratio"], row[f"{what}_spread"] = quartiles(ratios)
        if name != "compile":  # its kernels bypass the dispatcher
            used = memory(run, mlp, x, dy)
            row["saved"], row["transient"] = used.saved, used.transient
        rows.append(row)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    stock = next(r for r in rows if r["variant"] == "stock")
    for row in rows:
        line = f"| {row['tokens']} | {row['variant']} "
        for what in ("forward", "step"):
            ratio, spread = row[f"{what}_ratio"], row[f"{what}_spread"]
            line += f"| {row[f'{what}_ms']:.2f} | {ratio:.2f} ± {spread / 2:.2f} "
        if "saved" in row:
            share = row["transient"] / stock["transient"]
            line += f"| {row['saved'] / 1e6:.1f} | {row['transient'] / 1e6:.1f} | {share:.3f} |"
        else:
            line += "| | | |"
        print(line, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", action="append", choices=sorted(SHAPES), default=None)
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=None, help="variants, semicolon between; stock is kept")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    return parser.parse_args()


def chosen(mlp: Stock, only: str | None) -> tuple[dict[str, Forward], dict[str, str]]:
    """The variants that run here, and why the others do not."""
    wanted = None if only is None else {"stock", *(w.strip() for w in only.split(";"))}
    runs: dict[str, Forward] = {}
    left: dict[str, str] = {}
    x = torch.randn(TILE + 1, mlp.gate_proj.in_features).to(mlp.gate_proj.weight.dtype)
    for name, run in variants(mlp).items():
        if wanted is not None and name not in wanted:
            continue
        why = run if isinstance(run, str) else works(run, mlp, x.clone().requires_grad_())
        if why is None:
            runs[name] = run  # type: ignore[assignment]
        else:
            left[name] = why
    return runs, left


def main() -> int:
    asked = arguments()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    document: dict[str, Any] = {
        "benchmark": "gated_mlp",
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "threads": asked.threads,
        "dtype": asked.dtype,
        "shapes": {},
    }
    for shape in asked.shape or SHAPES:
        hidden, width = SHAPES[shape]
        mlp = Stock(hidden, width, getattr(torch, asked.dtype))
        runs, left = chosen(mlp, asked.only)
        print(f"\n{shape}: H {hidden}, I {width}, {asked.dtype}, {asked.threads} threads\n")
        for name, why in left.items():
            print(f"{name} left out: {why}")
        print(
            "| T | variant | forward ms | ratio | step ms | ratio "
            "| saved MB | transient MB | of stock |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        cells = []
        for tokens in map(int, asked.tokens.split(",")):
            rows = cell(runs, mlp, tokens, asked.rounds)
            show(rows)
            cells += rows
        document["shapes"][shape] = {"rows": cells, "left_out": left}
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
