"""The tables of docs/bench.md from the JSON of one or more runs of `gateup bench --json`.

    python benchmarks/bench_table.py build/bench/*.json

Later files replace what earlier ones say of the same cell. Rates of the machine are the highest of
all runs, and `of limit` is against them: a limit measured beside another program is none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gateup.bench.machine import Peaks
from gateup.bench.operators import COARSER, IMPLEMENTATIONS, OURS, Asked

Cell = dict[str, float]  # implementation -> seconds; its spread under name + SPREAD
SPREAD = " spread"


def read(paths: list[str]) -> tuple[dict[Any, Cell], dict[str, Any], Peaks]:
    """(hidden, width, format, T) -> cell; file -> whole models; the best rates."""
    cells: dict[Any, Cell] = {}
    models: dict[str, Any] = {}
    rates: dict[str, Any] = {}
    for path in paths:
        document = json.loads(Path(path).read_text())
        for key, value in document["peaks"].items():
            same = isinstance(value, str) or key == "threads"
            rates[key] = value if same else max(value, rates.get(key, 0.0))
        if "model" in document:
            models[Path(path).stem] = document["model"]
        ffn = document.get("ffn")
        for c in ffn["cells"] if ffn else ():
            key = (ffn["hidden_size"], ffn["intermediate_size"], c["kind"], c["tokens"])
            cell = cells.setdefault(key, {})
            for t in c["timings"]:
                cell[t["name"]], cell[t["name"] + SPREAD] = t["seconds"], t["spread"]
    return cells, models, Peaks(**rates)


def row(kind: str, tokens: int, cell: Cell, names: list[str], limit: float) -> str:
    words = [kind, str(tokens)]
    for name in names:
        seconds, spread = cell.get(name), cell.get(name + SPREAD, 0.0)
        words.append(f"{seconds * 1e3:.2f} ± {spread * 500:.2f}" if seconds else "")
    peers = [s for n, s in cell.items() if n in names and n not in (OURS, *COARSER)]
    words.append(f"{limit / cell[OURS]:.2f}")
    words.append(f"{min(peers) / cell[OURS]:.2f}" if peers else "")
    return "| " + " | ".join(words) + " |"


def operators(cells: dict[Any, Cell], peaks: Peaks) -> None:
    for hidden, width in sorted({k[:2] for k in cells}, reverse=True):
        ours = {k[2:]: c for k, c in cells.items() if k[:2] == (hidden, width)}
        names = [n for n in IMPLEMENTATIONS if any(n in c for c in ours.values())]
        kinds = list(dict.fromkeys(kind for kind, _ in ours))
        asked = Asked(hidden, width, tuple(kinds), (), peaks.threads)
        print(f"\n### {hidden} × {width}\n")
        head = ["weights", "T", *names, "of limit", "fastest peer / ours"]
        print("| " + " | ".join(head) + " |")
        print("|---" * len(head) + "|")
        for kind in kinds:
            for tokens in sorted(t for k, t in ours if k == kind):
                limit = peaks.seconds(kind, asked.nbytes(kind), asked.operations * tokens)
                print(row(kind, tokens, ours[kind, tokens], names, limit))


def whole(models: dict[str, Any]) -> None:
    for name, results in models.items():
        print(f"\n### {name}\n")
        print("| | prompt tok/s | writing tok/s | load s (imports included) | peak MB |")
        print("|---|---|---|---|---|")
        for r in results:
            speeds = f"{r['prefill']:.0f} | {r['decode']:.1f} | {r['load_s']:.2f}"
            print(f"| {r['name']} | {speeds} | {r['peak_rss'] / 1e6:.0f} |")


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    cells, models, p = read(sys.argv[1:])
    print(
        f"{p.isa}, {p.threads} threads; int8 {p.int8 / 1e12:.1f}, bf16 {p.bf16 / 1e12:.1f}, "
        f"fp32 {p.fp32 / 1e12:.2f} TOP/s, memory {p.bandwidth / 1e9:.1f} GB/s"
    )
    operators(cells, p)
    whole(models)


if __name__ == "__main__":
    main()
