"""How long it takes to open a model's headers, and how much memory.

    python benchmarks/headers.py [--runs 5]

Builds sparse files (their data is a hole, they take a few MB of disk) in a temporary folder:

- deepseek-v3: FP8 weights with a scale per 128 × 128 block, in 163 shards under an index
- gguf-150k: an 8B Llama's tensor table under a vocabulary of 151,936 tokens and 151,387 merges
- smollm2: the demo model's real file, where its package is installed

Each run is a fresh process; "open" is `gateup.open` with all imports, "read" the same once more
in the warm process, "rss" the process's peak after the first. Prints medians; the last line is
JSON.
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
from collections.abc import Iterator
from pathlib import Path

from gateup.model import presets
from gateup.model.families import gguf_tensors
from gateup.model.quant.formats import FORMATS

CHILD = """
import json, sys, time
start = time.perf_counter()
import gateup
checkpoint = gateup.open(sys.argv[1])
opened = time.perf_counter() - start
status = open("/proc/self/status").read()
peak = int(status.split("VmHWM:")[1].split()[0])
start = time.perf_counter()
again = gateup.open(sys.argv[1])
read = time.perf_counter() - start
print(json.dumps({"open": opened, "read": read, "rss": peak * 1024,
                  "tensors": len(checkpoint.headers), "file_nbytes": checkpoint.file_nbytes,
                  "label": checkpoint.label, "problems": checkpoint.problems}))
"""


def fp8_tensors() -> Iterator[tuple[str, str, list[int]]]:
    """(name, dtype, shape) of DeepSeek-V3's files: linear layers in FP8, each with its scales."""
    spec = presets.spec("deepseek-v3")
    for name, row in spec.tensors():
        shape = list(row.shape)
        linear = row.matmul and row.part in ("attention", "mlp") and row.role != "router"
        yield name, "F8_E4M3" if linear else "BF16", shape
        if linear:
            blocks = [-(-d // 128) for d in shape]
            yield name.removesuffix("weight") + "weight_scale_inv", "F32", blocks


def write_deepseek(folder: Path, shards: int = 163) -> Path:
    """A folder of `shards` sparse shards, index and config.json."""
    folder.mkdir()
    config = dict(presets.PRESETS["deepseek-v3"].config)
    config["quantization_config"] = {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    }
    (folder / "config.json").write_text(json.dumps(config))
    tensors = list(fp8_tensors())
    per_shard = -(-len(tensors) // shards)
    width = {"F8_E4M3": 1, "BF16": 2, "F32": 4}
    weight_map = {}
    for i in range(shards):
        name = f"model-{i + 1:05d}-of-{shards:06d}.safetensors"
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        at = 0
        for tensor, dtype, shape in tensors[i * per_shard : (i + 1) * per_shard]:
            size = width[dtype]
            for d in shape:
                size *= d
            header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            weight_map[tensor] = name
            at += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with (folder / name).open("wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            f.truncate(8 + len(text) + at)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return folder


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def write_gguf(path: Path, tokens: int = 151_936, merges: int = 151_387) -> Path:
    """An 8B Llama in Q8_0 under a vocabulary of Qwen's size, its data a hole."""
    spec = presets.spec("llama-3-8b")
    keys: list[tuple[str, bytes]] = [
        ("general.architecture", struct.pack("<I", 8) + _text("llama")),
        ("general.file_type", struct.pack("<II", 4, 7)),
    ]
    for key, value in (
        ("block_count", spec.num_layers),
        ("embedding_length", spec.hidden_size),
        ("feed_forward_length", 14336),
        ("attention.head_count", 32),
        ("attention.head_count_kv", 8),
        ("context_length", 8192),
    ):
        keys.append((f"llama.{key}", struct.pack("<II", 4, value)))
    for key, words in (
        ("tokens", [f"token{i}" for i in range(tokens)]),
        ("merges", [f"left{i} right{i}" for i in range(merges)]),
    ):
        body = b"".join(map(_text, words))
        keys.append((f"tokenizer.ggml.{key}", struct.pack("<IIQ", 9, 8, len(words)) + body))
    types = struct.pack("<IIQ", 9, 5, tokens) + b"\1\0\0\0" * tokens
    keys.append(("tokenizer.ggml.token_type", types))
    table, at = b"", 0
    tensors = gguf_tensors(spec)
    for tensor in tensors:
        number, fmt = (8, FORMATS["q8_0"]) if len(tensor.ne) > 1 else (0, FORMATS["f32"])
        dims = struct.pack(f"<I{len(tensor.ne)}Q", len(tensor.ne), *tensor.ne)
        table += _text(tensor.name) + dims + struct.pack("<IQ", number, at)
        at += -(-(tensor.elements // fmt.block_size * fmt.block_bytes) // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(_text(k) + v for k, v in keys) + table
    head += b"\0" * (-len(head) % 32)
    with path.open("wb") as f:
        f.write(head)
        f.truncate(len(head) + at)
    return path


def measure(ref: str, runs: int) -> dict[str, object]:
    """Medians over fresh processes."""
    found = []
    for _ in range(runs):
        out = subprocess.run(
            [sys.executable, "-c", CHILD, ref], check=True, capture_output=True, text=True
        ).stdout
        found.append(json.loads(out))
    first = found[0]
    result = {k: first[k] for k in ("label", "tensors", "file_nbytes", "problems")}
    for key in ("open", "read", "rss"):
        values = [f[key] for f in found]
        result[key] = statistics.median(values)
        result[key + "_spread"] = max(values) - min(values)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory of opening headers.")
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        cases = {
            "deepseek-v3": str(write_deepseek(folder / "deepseek")),
            "gguf-150k": str(write_gguf(folder / "vocabulary.gguf")),
            "smollm2": "smollm2",
        }
        for name, ref in cases.items():
            try:
                results[name] = measure(ref, runs)
            except subprocess.CalledProcessError as e:
                print(f"{name}: {e.stderr.strip().splitlines()[-1]}")
                continue
            r = results[name]
            print(
                f"{name:12} {r['tensors']:>7,} tensors  {r['file_nbytes'] / 1e9:8.2f} GB  "  # type: ignore[operator]
                f"open {r['open'] * 1e3:6.0f} ms  read {r['read'] * 1e3:6.0f} ms  "  # type: ignore[operator]
                f"peak RSS {r['rss'] / 1e6:6.1f} MB"  # type: ignore[operator]
            )
            for problem in r["problems"]:  # type: ignore[attr-defined]
                print(f"    {problem}")
    machine = {"python": platform.python_version(), "machine": platform.machine(), "runs": runs}
    print(json.dumps({"benchmark": "headers", **machine, "results": results}))


if __name__ == "__main__":
    main()
