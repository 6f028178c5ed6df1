"""How long `gateup check` takes on large checkpoints, from process start to the last rule.

    python benchmarks/check.py [--runs 5]

Builds sparse files (their data is a hole, they take a few MB of disk) in a temporary folder:

- llama-2-70b: 723 bf16 tensors in 15 shards, 138 GB, with a tokenizer of 32,000 entries
- pruned: the same with ten layers' MLPs cut to 24,576, so that every edit of the config is tried
- deepseek-v3: 91,000 tensors in 163 shards, where experts and scales lie one by one

Each run is a fresh process; "check" is `gateup.check` with all imports at tp 8 and q4_k_m, "rules"
the rules alone, once more in the warm process. Prints medians; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import struct
import subprocess
import sys
import tempfile
from math import prod
from pathlib import Path

from gateup.model import presets
from headers import write_deepseek

CHILD = """
import json, sys, time
start = time.perf_counter()
import gateup
report = gateup.check(sys.argv[1], tp=8, quant="q4_k_m")
checked = time.perf_counter() - start
from gateup.checks.runner import run_rules
from dataclasses import replace
start = time.perf_counter()
run_rules(replace(report.context))
rules = time.perf_counter() - start
print(json.dumps({"check": checked, "rules": rules, "failed": dict(report.failed),
                  "tensors": len(report.context.checkpoint.headers), "ran": len(report.ran),
                  "found": {f.rule: f.severity for f in report.findings}}))
"""


def write_llama(folder: Path, pruned: int = 0, shards: int = 15) -> Path:
    """Llama-2-70B as on the Hub, its first `pruned` layers' MLPs narrower."""
    folder.mkdir()
    config = dict(presets.PRESETS["llama-2-70b"].config)
    (folder / "config.json").write_text(json.dumps(config))
    vocab = {f"token{i}": i for i in range(config["vocab_size"])}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
    tensors = []
    for name, row in presets.spec("llama-2-70b").tensors():
        shape = list(row.shape)
        if row.part == "mlp" and row.layer is not None and row.layer < pruned:
            shape = [24576 if d == 28672 else d for d in shape]
        tensors.append((name, shape))
    per_shard = -(-len(tensors) // shards)
    weight_map, total = {}, 0
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        header, at = {}, 0
        for name, shape in tensors[i * per_shard : (i + 1) * per_shard]:
            end = at + 2 * prod(shape)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
            weight_map[name] = file
            at = end
        text = json.dumps(header).encode()
        with (folder / file).open("wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            f.truncate(8 + len(text) + at)
        total += at
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def measure(ref: str, runs: int) -> dict[str, object]:
    """Medians over fresh processes."""
    found = []
    for _ in range(runs):
        out = subprocess.run(
            [sys.executable, "-c", CHILD, ref], check=True, capture_output=True, text=True
        ).stdout
        found.append(json.loads(out))
    result = {k: found[0][k] for k in ("tensors", "ran", "found", "failed")}
    for key in ("check", "rules"):
        values = [f[key] for f in found]
        result[key] = statistics.median(values)
        result[key + "_spread"] = max(values) - min(values)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of checking large checkpoints.")
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        cases = {
            "llama-2-70b": write_llama(folder / "llama"),
            "pruned": write_llama(folder / "pruned", pruned=10),
            "deepseek-v3": write_deepseek(folder / "deepseek"),
        }
        for name, path in cases.items():
            r = results[name] = measure(str(path), runs)
            print(
                f"{name:12} {r['tensors']:>7,} tensors  {r['ran']} rules  "
                f"check {r['check'] * 1e3:6.0f} ms ± {r['check_spread'] * 1e3:.0f}  "  # type: ignore[operator]
                f"rules {r['rules'] * 1e3:6.0f} ms  {r['found']}"  # type: ignore[operator]
            )
    machine = {"python": platform.python_version(), "machine": platform.machine(), "runs": runs}
    print(json.dumps({"benchmark": "check", **machine, "results": results}))


if __name__ == "__main__":
    main()
