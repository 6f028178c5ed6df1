"""Cells as they are measured, with real processes; what cannot take part is named."""

import io
import signal
import sys
from pathlib import Path

import pytest
from rich.console import Console

from gateup.bench import operators
from gateup.bench.machine import Peaks
from gateup.bench.operators import Asked, CellResult, Process, Timing
from gateup.bench.protocol import ended
from gateup.bench.report import render_cells
from gateup.errors import UsageError

PEAKS = Peaks("generic", 1, fp32=2e9, bf16=0.0, int8=8e9, bandwidth=1e9)


def asked(**changes: object) -> Asked:
    values = {"hidden": 64, "width": 96, "kinds": ("q8_0",), "tokens": (1, 3), "threads": 1,
              "turns": 2}  # fmt: skip
    return Asked(**{**values, **changes})  # type: ignore[arg-type]


def test_the_roofline_takes_the_slower_of_memory_and_units() -> None:
    ffn = asked(hidden=4096, width=14336)
    assert ffn.nbytes("q8_0") == 187_170_816
    assert ffn.nbytes("q4_k") == 99_090_432
    assert ffn.operations == 352_321_536
    assert PEAKS.seconds("q8_0", 187_170_816, ffn.operations) == pytest.approx(0.187170816)
    assert PEAKS.seconds("q8_0", 187_170_816, 512 * ffn.operations) == pytest.approx(22.548578)
    assert PEAKS.compute("bf16") == PEAKS.compute("f32") == 2e9  # no instructions of its own


def test_every_implementation_computes_the_same_ffn() -> None:
    """torch's eager bf16 is the oracle; the workers speak the protocol in processes."""
    results = {}
    for name in ("gateup", "torch"):
        with Process(name, asked()) as process:
            cell = {"kind": "bf16", "hidden": 64, "width": 96, "threads": 1, "copies": 2}
            answer = process.ask(do="prepare", tokens=[3], **cell)
            assert "ok" in answer, answer
            results[name] = process.ask(do="check", tokens=3)["y"]
            assert process.ask(do="warm", tokens=3)["seconds"] > 0
            assert len(process.ask(do="time", tokens=3, calls=5)["seconds"]) == 5
            assert (
                "UsageError"
                in process.ask(do="prepare", tokens=[3], **{**cell, "kind": "x"})["error"]
            )
    ours, theirs = ([v for row in results[n] for v in row] for n in ("gateup", "torch"))
    scale = max(map(abs, theirs))
    assert scale > 0.01
    # Three bf16 roundings apart at most: 3 · 2^-8 of the largest.
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 3 * 2**-8 * scale


def test_peers_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "gateup": operators.IMPLEMENTATIONS["gateup"],
        "absent": ("no_such_module", (), "nowhere"),
    }
    monkeypatch.setattr(operators, "IMPLEMENTATIONS", table)
    notes: list[str] = []
    cells = list(operators.run(asked(), PEAKS, notes.append))
    assert [(c.kind, c.tokens) for c in cells] == [("q8_0", 1), ("q8_0", 3)]
    assert all([t.name for t in c.timings] == ["gateup"] for c in cells)
    assert all(c.timings[0].seconds > 0 and c.fastest_peer is None for c in cells)
    assert notes == [
        "q8_0: without absent: it ended with status 1 (nowhere not installed, or not for this)"
    ]


def test_a_peer_that_crashes_is_not_called_missing() -> None:
    with Process("torch", asked()) as process:
        process._child.send_signal(signal.SIGSEGV)
        assert process.ask(do="warm", tokens=1) == {"error": "it crashed (SIGSEGV)"}
    assert "memory" in (ended(-9) or "")
    assert ended(-200) == "it crashed (signal 200)"
    assert ended(1) is None


@pytest.mark.parametrize(
    ("width", "why"), [(96, "stay in the caches"), (1 << 16, "something else ran")]
)
def test_what_is_faster_than_the_limit_is_marked(
    width: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = asked(width=width, tokens=(1,))
    limit = PEAKS.seconds("q8_0", few.nbytes("q8_0"), few.operations)
    monkeypatch.setattr(operators, "_prepared", lambda *_: [])
    for share, marked in ((0.8, True), (0.98, False), (1.2, False)):
        timing = Timing("gateup", share * limit, 0.0)
        monkeypatch.setattr(operators, "_time", lambda *_, timing=timing: (timing,))
        notes: list[str] = []
        (cell,) = operators.run(few, PEAKS, notes.append)
        assert (cell.beyond == ("gateup",)) == marked
        assert len(notes) == marked
        console = Console(file=io.StringIO(), width=160)
        render_cells(console, few, [cell])
        assert ("?" in console.file.getvalue()) == marked  # type: ignore[attr-defined]
    few_notes: list[str] = []
    monkeypatch.setattr(operators, "_time", lambda *_: (Timing("gateup", limit / 2, 0.0),))
    list(operators.run(few, PEAKS, few_notes.append))
    assert why in few_notes[0]
    assert few_notes[0].startswith("q8_0, T=1: faster than the limit (gateup): ")


def test_a_format_we_cannot_pack_is_an_error() -> None:
    with pytest.raises(UsageError, match="rows of 64 do not divide into q4_k"):
        next(operators.run(asked(kinds=("q4_k",), peers=False), PEAKS, print))


def test_another_python_for_the_peers(tmp_path: Path) -> None:
    with Process("torch", asked(peers_python=Path(sys.executable))) as process:
        assert "error" in process.ask(do="prepare", kind="q8_0", hidden=64, width=96, threads=1,
                                      copies=1, tokens=[1])  # fmt: skip


def test_what_is_slow_has_fewer_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[str] = []

    class Slow:
        name = operators.OURS

        def ask(self, **question: object) -> dict[str, object]:
            asked_for.append(str(question["do"]))
            return {"seconds": 0.6} if question["do"] == "warm" else {"seconds": [0.6]}

    monkeypatch.setattr(operators, "_prepared", lambda *_: [Slow()])
    (cell,) = operators.run(asked(turns=9, tokens=(1,)), PEAKS, print)
    assert cell.timings == (Timing("gateup", 0.6, 0.0),)
    assert asked_for == ["warm", "time", "time"]


def test_the_fastest_peer_is_not_us() -> None:
    timings = (Timing("gateup", 1.0, 0.0), Timing("b", 3.0, 0.1), Timing("a", 2.0, 0.1))
    cell = CellResult("q8_0", 1, 0.5, timings)
    assert cell.fastest_peer == Timing("a", 2.0, 0.1)
    coarser = Timing(operators.COARSER[0], 0.1, 0.0)
    assert CellResult("q4_0", 1, 0.5, (*timings, coarser)).fastest_peer == Timing("a", 2.0, 0.1)
    assert cell.of("c") is None
