"""What was measured, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from gateup.account.report.console import cell, columns, heading, line, put
from gateup.bench.machine import Peaks, processor
from gateup.bench.operators import COARSER, IMPLEMENTATIONS, OURS, Asked, CellResult
from gateup.bench.whole import NEW, PROMPT, WholeResult

SCHEMA = "gateup.bench/1"


def render_peaks(console: Console, peaks: Peaks) -> None:
    heading(console, f"{processor()}, {peaks.isa}, {_threads(peaks.threads)}")
    rates = {"int8": peaks.int8, "bf16": peaks.bf16, "fp32": peaks.fp32}
    words = [f"{name} {rate / 1e9:,.0f} GOP/s" for name, rate in rates.items() if rate]
    line(console, f"{', '.join(words)}; memory {peaks.bandwidth / 1e9:.1f} GB/s", indent=2)


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def render_cells(console: Console, asked: Asked, cells: Sequence[CellResult]) -> None:
    """One row per format and T: milliseconds of each, ours against the limit and the fastest."""
    names = [n for n in IMPLEMENTATIONS if any(c.of(n) for c in cells)]
    heading(
        console, f"FFN of {asked.hidden} × {asked.width}: ms, median ± half the quartiles' range"
    )
    table = columns(console, "format", "T", *names, "limit", "of limit", "to fastest peer")
    for c in cells:
        ours, peer = c.of(OURS), c.fastest_peer
        row = [c.kind, str(c.tokens)]
        for name in names:
            timing = c.of(name)
            row.append("" if timing is None else _ms(timing.seconds, timing.spread))
        row.append(f"{c.limit * 1e3:.2f}" + ("?" if c.beyond else ""))
        row.append("" if ours is None else f"{c.limit / ours.seconds:.2f}")
        row.append("" if ours is None or peer is None else f"{peer.seconds / ours.seconds:.2f}")
        table.add_row(*(cell(text) for text in row))
    put(console, table)
    line(
        console,
        "limit: the file's bytes at the memory's rate or the multiply-adds at the peak, whichever "
        "takes longer. To fastest peer: its time over ours, above 1 where ours is faster; "
        f"{COARSER[0]} not counted, a coarser format.",
        indent=2,
    )


def _ms(seconds: float, spread: float) -> str:
    return f"{seconds * 1e3:.2f} ± {spread * 500:.2f}"


def render_whole(console: Console, label: str, results: Sequence[WholeResult]) -> None:
    heading(console, f"{label}: {PROMPT} tokens of prompt, {NEW} tokens written")
    table = columns(console, "", "prompt tok/s", "writing tok/s", "load s", "peak MB")
    for r in results:
        row = (r.name, f"{r.prefill:.0f}", f"{r.decode:.1f}", f"{r.load_s:.2f}")
        table.add_row(*(cell(text) for text in (*row, f"{r.peak_rss / 1e6:.0f}")))
    put(console, table)


def to_json(
    peaks: Peaks,
    asked: Asked | None,
    cells: Sequence[CellResult],
    whole: Sequence[WholeResult],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Seconds, bytes and per second throughout."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "processor": processor(),
        "peaks": peaks.to_json(),
        "notes": list(notes),
    }
    if asked is not None:
        document["ffn"] = {
            "hidden_size": asked.hidden,
            "intermediate_size": asked.width,
            "cells": [asdict(c) for c in cells],
        }
    if whole:
        document["model"] = [asdict(r) for r in whole]
    return document
