"""A GGUF in transformers, in place and dequantised: time to load, peak memory, tokens a second.

    python benchmarks/load_gguf.py                   # the demo model
    python benchmarks/load_gguf.py FILE.gguf 64 16   # prompt tokens, generated tokens

Each way runs in a process of its own, imports done: gateup.load_gguf (packed, and raw from the
mapped file), and transformers' own from_pretrained(gguf_file=…). Memory is the peak of resident
memory above what the imports take. Prefill and decode are medians of three, greedy, by generate().
The last line is JSON.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

WAYS = ("packed", "raw", "transformers")
REPEATS = 3


def high_water_mark() -> int:
    """Bytes; the peak of resident memory since the mark was reset."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) << 10 if found else 0


def load(way: str, path: Path) -> Any:
    if way == "transformers":
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        )
    from gateup.hf.load import load_gguf

    return load_gguf(path, native=None if way == "packed" else False)


def imports() -> None:
    """What every way needs, so that it counts for none."""
    import gguf.quants
    from transformers import LlamaForCausalLM

    import gateup.hf.load

    del gguf, LlamaForCausalLM, gateup


def seconds(model: Any, prompt: torch.Tensor, new: int) -> float:
    """Median time of generating `new` tokens."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        model.generate(prompt, min_new_tokens=new, max_new_tokens=new, do_sample=False)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(way: str, path: Path, tokens: int, new: int) -> dict[str, float]:
    imports()
    torch.ones(8, 8) @ torch.ones(8, 8)
    Path("/proc/self/clear_refs").write_text("5")
    before, start = high_water_mark(), time.perf_counter()
    model = load(way, path)
    loaded = time.perf_counter() - start
    prompt = torch.arange(1000, 1000 + tokens)[None]
    model.generate(prompt, max_new_tokens=1, do_sample=False)
    prefill = seconds(model, prompt, 1)
    whole = seconds(model, prompt, 1 + new)
    return {
        "load_s": loaded,
        "peak_over_file": (high_water_mark() - before) / path.stat().st_size,
        "prefill_tokens_s": tokens / prefill,
        "decode_tokens_s": new / (whole - prefill),
    }


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in WAYS:
        way, path, tokens, new = sys.argv[1:]
        print(json.dumps(measure(way, Path(path), int(tokens), int(new))))
        return
    from gateup.files.checkpoint import demo_model

    path = Path(sys.argv[1]) if len(sys.argv) > 1 else demo_model()
    tokens, new = (sys.argv[2:4] + ["64", "8"][len(sys.argv[2:4]) :])[:2]
    results = {}
    print(f"{path.name}, prompt {tokens}, {new} tokens, {torch.get_num_threads()} threads,")
    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}")
    print(f"{'':14}{'load s':>9}{'peak/file':>11}{'prefill tok/s':>15}{'decode tok/s':>14}")
    for way in WAYS:
        argv = [sys.executable, __file__, way, str(path), tokens, new]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, env=os.environ)
        got = results[way] = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{way:14}{got['load_s']:9.2f}{got['peak_over_file']:11.2f}"
            f"{got['prefill_tokens_s']:15.0f}{got['decode_tokens_s']:14.1f}"
        )
    print(json.dumps({"file": path.name, "tokens": tokens, "new": new, "ways": results}))


if __name__ == "__main__":
    main()
