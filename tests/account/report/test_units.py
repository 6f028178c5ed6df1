"""How numbers are written."""

from __future__ import annotations

import pytest

from gateup.account.figure import Figure
from gateup.account.report import units


@pytest.mark.parametrize(
    ("nbytes", "memory", "traffic"),
    [
        (0, "0 B", "0 B"),
        (999, "999 B", "999 B"),
        (1024, "1.00 KiB", "1.02 kB"),
        (4_912_898_048, "4.58 GiB", "4.91 GB"),
        (24 * 10**9, "22.35 GiB", "24.00 GB"),
        ((1 << 30) - 1, "1.00 GiB", "1.07 GB"),  # not "1,024.00 MiB"
        (999_999, "976.56 KiB", "1.00 MB"),  # not "1,000.00 kB"
        (1_342_052_838_400, "1.22 TiB", "1.34 TB"),
    ],
)
def test_bytes(nbytes: int, memory: str, traffic: str) -> None:
    assert units.memory(nbytes) == memory
    assert units.traffic(nbytes) == traffic


def test_counts() -> None:
    assert units.integer(8_030_261_248) == "8,030,261,248"
    assert units.billions(8_030_261_248) == "8.03 B"
    assert units.billions(671_026_419_200) == "671.03 B"
    assert units.billions(134_515_008) == "134.52 M"
    assert units.billions(576) == "576"
    assert units.si(15_009_849_344, "FLOP") == "15.01 GFLOP"
    assert units.si(0) == "0"
    assert units.si(12, "FLOP") == "12 FLOP"


def test_shares() -> None:
    assert units.share(5_637_144_576, 8_030_261_248) == "70.2 %"
    assert units.share(1, 0) == "-"
    assert units.percent(0.5) == "50.0 %"


def test_rounded() -> None:
    assert units.rounded(2.8909) == "2.891"
    assert units.rounded(82_209.7) == "82,210"
    assert units.rounded(21_504) == "21,504"
    assert units.raw(8_030_261_248) == "8,030,261,248"
    assert units.raw(0.70198) == "0.70198"


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure(1 << 30, "B", "exact"), "= 1.00 GiB"),
        (Figure(1 << 30, "bytes", "estimate"), "≈ 1.00 GiB"),
        (Figure(21.51, "tokens/s", "bound"), "≤ 21.51 tokens/s"),
        (Figure(0.702, "share", "exact"), "= 70.2 %"),
        (Figure(21504, "tokens", "exact"), "= 21,504 tokens"),
        (Figure(131072, "B/token", "exact"), "= 128.00 KiB/token"),
        (Figure(10**9, "FLOP/token", "exact"), "= 1.00 GFLOP/token"),
    ],
)
def test_a_figure_has_its_sign_and_unit(figure: Figure, text: str) -> None:
    assert units.tagged(figure) == text


def test_names_cannot_command_a_terminal() -> None:
    assert units.printable("model.layers.0") == "model.layers.0"
    assert units.printable("a\x1b[2Jb\x07\r") == "a\\x1b[2Jb\\x07\\r"
    assert units.printable("two\nlines") == "two\nlines"
    assert units.printable("\u202egnp") == "\\u202egnp"  # right-to-left override
    assert units.printable("\udcff") == "\\udcff"  # a byte that is no UTF-8
