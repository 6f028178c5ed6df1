"""The terminal: nothing cut off, nothing taken for markup, colours only where wanted."""

from __future__ import annotations

import dataclasses
import io
import re

import pytest
from rich.console import Console

from gateup.account.figure import Figure
from gateup.account.measure import Measured, Measurements
from gateup.account.plan import Plan, plan
from gateup.account.report.explain import explain
from gateup.account.report.shape_flow import render_shown
from gateup.account.report.tables import (
    GROUP_STYLES,
    PART_STYLES,
    bar,
    make_console,
    render,
    render_side_by_side,
)
from gateup.account.show import show


@pytest.fixture(scope="module")
def misfit() -> Plan:
    return plan("llama-3-8b", quant="q4_k_m", ctx=32768, device="8GB")


def console(width: int = 100, *, terminal: bool = False) -> Console:
    made = make_console(io.StringIO())
    return Console(
        file=made.file,
        markup=False,
        highlight=False,
        emoji=False,
        width=width,
        force_terminal=terminal,
        color_system="truecolor" if terminal else None,
    )


def text(made: Console) -> str:
    assert isinstance(made.file, io.StringIO)
    return made.file.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_no_line_is_wider_than_the_console(misfit: Plan, width: int) -> None:
    out = console(width)
    render(misfit, out)
    render_side_by_side([misfit, misfit, misfit], out)
    explain(misfit, out)
    render_shown(show("llama-3-8b"), out)
    assert max(map(len, text(out).splitlines())) <= width


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_digit_is_lost_at_any_width(misfit: Plan, width: int) -> None:
    out = console(width)
    render(misfit, out)
    digits = re.sub(r"[^\d]", "", text(out))
    full = console(400)
    render(misfit, full)
    # Folded columns change the order of characters, not their number.
    assert sorted(digits) == sorted(re.sub(r"[^\d]", "", text(full)))


def test_every_number_of_the_table_has_a_sign(misfit: Plan) -> None:
    out = console(120)
    render(misfit, out)
    rows = [x for x in text(out).splitlines() if x.startswith(("MLP ", "attention ", "total"))]
    assert len(rows) >= 3
    assert all(re.search(r"[=≤≈] [\d,.]+", row) for row in rows)
    assert "= exact   ≤ bound (never more)   ≈ estimate" in text(out)


def test_each_phase_has_its_own_kind(misfit: Plan) -> None:
    out = console(200)
    render(misfit, out)
    line = next(x for x in text(out).splitlines() if "by phase:" in x)
    assert "load = " in line  # stored weights alone
    assert "compute ≈ " in line


def test_the_mlp_has_its_own_colour(misfit: Plan) -> None:
    out = console(120, terminal=True)
    render(misfit, out)
    mlp = next(x for x in text(out).splitlines() if "5,637,144,576" in x)
    assert "\x1b[1;38;5;208m" in mlp or "255;140;0" in mlp
    others = [style for part, style in PART_STYLES.items() if part != "mlp"]
    assert PART_STYLES["mlp"] not in others


def test_no_colour_where_it_is_not_wanted(misfit: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = console(120, terminal=True)
    render(misfit, out)
    # Bold and dim may stay; a colour may not.
    assert not re.search(r"\x1b\[[\d;]*3[0-8]", text(out))


def test_every_group_of_memory_has_a_style() -> None:
    from typing import get_args

    from gateup.account.memory import Group

    assert set(GROUP_STYLES) == set(get_args(Group))


def test_bars() -> None:
    assert bar(1.0, 8, "").plain == "████████"
    assert bar(0.5, 8, "").plain == "████"
    assert bar(1 / 16, 8, "").plain == "▌"
    assert bar(0.0, 8, "").plain == ""
    assert bar(7.0, 8, "").plain == "████████"


def test_hostile_names_are_only_text(misfit: Plan) -> None:
    name = "[red]x[/nope]\x1b[31m[link=http://x]"
    spec = dataclasses.replace(misfit.spec, name=name)
    bad = dataclasses.replace(
        misfit, scenario=misfit.scenario.with_(spec=spec), notes=(name,), label=name
    )
    out = console(200)
    render(bad, out)
    render_side_by_side([bad, bad], out)
    explain(bad, out)
    assert "[red]x[/nope]\\x1b[31m[link=http://x]" in text(out)
    assert "\x1b" not in text(out)


def test_more_models_than_fit_the_width_make_further_tables(misfit: Plan) -> None:
    out = console(80)
    render_side_by_side([misfit] * 5, out)
    assert text(out).count("MLP share of parameters") == 2
    assert text(out).count("70.2 %") == 5


def test_a_run_without_cache_says_nothing_of_it() -> None:
    out = console()
    render(plan("qwen3-0.6b", train="full", ctx=64), out)
    assert "KV cache" not in text(out)
    assert "training, FLOPs of one step" in text(out)


def test_attention_that_never_catches_up_says_why() -> None:
    p = plan("llama-3-8b", ctx=64)
    point = dataclasses.replace(p.crossover.model, token=None, prefill=None, why="windows cap it")
    figures = {k: v for k, v in p.figures.items() if not k.startswith("crossover")}
    never = dataclasses.replace(
        p, crossover=dataclasses.replace(p.crossover, model=point), figures=figures
    )
    out = console()
    render(never, out)
    assert re.search(r"attention overtakes the MLP +never", text(out))
    assert "windows cap it" in text(out)


def test_measurements_beside_predictions() -> None:
    p = plan("qwen3-0.6b", ctx=64)
    predicted = Figure(110 << 20, "B", "estimate")
    row = Measured("k", "peak of the MLP", predicted, 100 << 20, "B", "here, T 64")
    measured = Measurements((row,), ("llama.cpp was not run",))
    out = console()
    render(dataclasses.replace(p, measured=measured), out)
    assert re.search(r"peak of the MLP +≈ 110.00 MiB +100.00 MiB +\+10.0 %", text(out))
    assert "here, T 64" in text(out)
    assert "llama.cpp was not run" in text(out)


def test_explain_shows_every_figure(misfit: Plan) -> None:
    out = console(200)
    explain(misfit, out)
    for path, figure in misfit.figures.items():
        assert path in text(out)
        assert figure.formula in text(out)
