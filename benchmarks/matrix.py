"""Time products with packed weights against this machine's limits.

    python benchmarks/matrix.py [--types Q4_K,Q8_0] [--tokens 1,8,64,512] [--isa amx] [--mlp]

Weights are cold: copies larger than --cold MB together take turns. Medians over the rounds.
`memory` counts the bytes the matrix has in the file, `roofline` is the larger of the times that
memory and arithmetic need by the peaks given, over the time taken.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import gguf
import numpy as np
import torch

from gateup.ops import native, native_matrix

SHAPES = {"8b": (4096, 14336), "1b": (2048, 8192), "smollm2": (576, 1536)}


def matrices(name: str, n: int, k: int, copies: int) -> list[native_matrix.Packed]:
    type_ = gguf.GGMLQuantizationType[name]
    block, nbytes = gguf.GGML_QUANT_SIZES[type_]
    raw = np.random.default_rng(0).integers(0, 256, (n * k // block, nbytes), dtype=np.uint8)
    for at in {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q6_K": (208,)}.get(
        name, (0,)
    ):
        raw[:, at : at + 2] = np.full((len(raw), 1), 0.01, np.float16).view(np.uint8)
    data = native_matrix.pack(type_, torch.from_numpy(raw.reshape(n, -1)), n, k)
    made = [native_matrix.Packed(int(type_), data, n, k)]
    while len(made) < copies:
        copy = native_matrix._aligned(data.numel())
        copy.copy_(data)
        made.append(native_matrix.Packed(int(type_), copy, n, k))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--types", default="Q8_0,Q4_0,Q4_K,Q6_K")
    parser.add_argument("--tokens", default="1,8,64,512")
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--isa", default="")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cold", type=float, default=1000)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--bandwidth", type=float, default=32.5, help="GB/s")
    parser.add_argument("--peak", type=float, default=925, help="GOP/s")
    parser.add_argument("--linear", action="store_true", help="gate alone, not the MLP")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.isa:
        native.extension().use_isa(args.isa)
    h, i = SHAPES[args.shape]
    stream = native_matrix._aligned(1 << 29).fill_(1).view(torch.int64)
    rows = []
    for name in args.types.split(","):
        block, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
        elements = h * i * (1 if args.linear else 3)
        size = elements // block * nbytes
        copies = max(1, round(args.cold * 1e6 / size))
        gates, ups = (
            matrices(name, i, h, copies if j == 0 or not args.linear else 1) for j in (0, 1)
        )
        downs = matrices(name, h, i, 1 if args.linear else copies)
        for t in map(int, args.tokens.split(",")):
            x = torch.randn(t, h)
            turn, times, reads, began = 0, [], [], time.perf_counter()
            while len(times) < 3 or time.perf_counter() - began < args.seconds:
                start = time.perf_counter()
                if args.linear:
                    native_matrix.linear(x, [gates[turn]])
                else:
                    native_matrix.gated_mlp(x, gates[turn], ups[turn], downs[turn])
                times.append(time.perf_counter() - start)
                turn = (turn + 1) % copies
                if len(times) % max(1, int(0.2 / times[-1])) == 0 and t <= 8:
                    start = time.perf_counter()
                    stream.sum()
                    reads.append((1 << 29) / (time.perf_counter() - start) / 1e9)
            ms = statistics.median(times) * 1e3
            limit = max(size / args.bandwidth / 1e6, 2 * elements * t / args.peak / 1e6)
            row = {
                "type": name, "t": t, "ms": round(ms, 3), "best_ms": round(min(times) * 1e3, 3),
                "gb_s": round(size / ms / 1e6, 1), "gop_s": round(2 * elements * t / ms / 1e6),
                "roofline": round(limit / ms, 2), "n": len(times),
                "read": round(max(reads, default=0), 1),
            }  # fmt: skip
            rows.append(row)
            print("  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    print(json.dumps({"isa": native.extension().isa(), "threads": args.threads, "rows": rows}))


if __name__ == "__main__":
    main()
