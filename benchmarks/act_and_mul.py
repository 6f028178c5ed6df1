"""Time act(gate) ⊙ up, forward and backward: torch eager, torch.compile, and our backends.

    python benchmarks/act_and_mul.py [--act silu] [--dtype bfloat16] [--threads N] [--rounds 9]

The variants of a shape take turns, so that what else the machine does meets all alike. Medians
over the rounds, with the quartiles' distance. `of memory` is the share of the bandwidth that a
large sum of two tensors reaches on the same threads, counting each tensor once; beyond 1 the
data stayed in the caches. Backward starts from what autograd keeps: gate, up and, for eager,
act(gate). The last line is the same as JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gateup.account import machine
from gateup.ops import dispatch, native
from gateup.ops.activations import activation

# Tokens × width: SmolLM2's, Qwen3-0.6B's and Llama-3-8B's MLPs, from decoding to a long prompt.
SHAPES = ((1, 1536), (16, 1536), (128, 3072), (128, 14336), (1024, 14336), (4096, 14336))
# Calls are repeated within a round until they have taken about this long.
ROUND_SECONDS = 0.02

Variant = Callable[[], object]


def variants(act: str, dtype: torch.dtype, shape: tuple[int, int], compiled: bool) -> Any:
    """(forward, backward): each {name: call without arguments} on the same tensors."""
    chosen = activation(act)
    grad, gate, up = (torch.randn(shape).to(dtype) for _ in range(3))
    kept = chosen.value(gate)
    outs = [torch.empty_like(gate) for _ in range(2)]

    def eager(gate: Tensor, up: Tensor) -> Tensor:
        return chosen.gated(gate, up)

    def eager_backward(grad: Tensor, gate: Tensor, up: Tensor, kept: Tensor) -> Any:
        return chosen.gradient(grad * up, gate), grad * kept

    forward: dict[str, Variant] = {"eager": lambda: eager(gate, up)}
    backward: dict[str, Variant] = {"eager": lambda: eager_backward(grad, gate, up, kept)}
    if compiled:
        f, b = torch.compile(eager), torch.compile(eager_backward)
        forward["compile"] = lambda: f(gate, up)
        backward["compile"] = lambda: b(grad, gate, up, kept)
    for backend in (dispatch.TorchBackend(), native.NativeBackend()):
        if backend.why_not(act, gate, outs[0]) is None:
            forward[f"ours ({backend.name})"] = lambda k=backend: k.forward(
                gate, up, act, torch.empty_like(gate)
            )
            backward[f"ours ({backend.name})"] = lambda k=backend: k.backward(
                grad, gate, up, act, *(torch.empty_like(gate) for _ in range(2)), None
            )
    return forward, backward


def measure(calls: dict[str, Variant], rounds: int) -> dict[str, tuple[float, float]]:
    """Median seconds a call and the quartiles' distance, the variants taking turns."""
    repeats = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, int(ROUND_SECONDS / max(time.perf_counter() - start, 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - start) / repeats[name])
    return {name: (statistics.median(t), spread(t)) for name, t in times.items()}


def spread(times: list[float]) -> float:
    low, _, high = statistics.quantiles(times, n=4)
    return high - low


def bandwidth(rounds: int) -> float:
    """Bytes per second of c = a + b over tensors of 256 MiB."""
    a, b, c = (torch.ones(1 << 26) for _ in range(3))
    median, _ = measure({"sum": lambda: torch.add(a, b, out=c)}, rounds)["sum"]
    return 3 * a.nbytes / median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--act", default="silu", choices=native.ACTS)
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    compiled = shutil.which("c++") is not None or shutil.which("g++") is not None
    memory = bandwidth(options.rounds)
    where = {
        "processor": machine.probe().name,
        "threads": options.threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "native": str(native.status()),
        "bandwidth_gb_s": round(memory / 1e9, 2),
        "act": options.act,
        "dtype": options.dtype,
    }
    for key, value in where.items():
        print(f"{key}: {value}")
    print(f"\n{'pass':9}{'T × I':>13}  {'variant':<15}{'ms':>9}{'±':>8}{'× eager':>9}  of memory")
    rows = []
    for shape in SHAPES:
        # Tensors read and written: gate, up, h; grad, gate, up, d_gate, d_up.
        for name, calls, tensors in zip(
            ("forward", "backward"),
            variants(options.act, dtype, shape, compiled),
            (3, 5),
            strict=True,
        ):
            results = measure(calls, options.rounds)
            nbytes = tensors * shape[0] * shape[1] * dtype.itemsize
            for variant, (median, iqr) in results.items():
                ratio, share = median / results["eager"][0], nbytes / median / memory
                print(
                    f"{name:9}{shape[0]:>5} × {shape[1]:<5}  {variant:<15}"
                    f"{median * 1e3:9.4f}{iqr * 1e3:8.4f}{ratio:9.2f}  {share:9.2f}"
                )
                rows.append(
                    {"pass": name, "shape": shape, "variant": variant, "seconds": median,
                     "iqr": iqr, "of_eager": ratio, "of_memory": share}
                )  # fmt: skip
    print(json.dumps({**where, "rows": rows}))


if __name__ == "__main__":
    main()
