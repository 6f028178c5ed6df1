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
from gateup.account.report.console import bar, make_console
from gateup.account.report.explain import explain
from gateup.account.report.shape_flow import render_shown
from gateup.account.report.tables import (
    GROUP_STYLES,
    PART_STYLES,
    render,
    render_side_by_side,
)
from gateup.account.show import show


@pytest.fixture(scope="module")
def misfit() -> Plan:
    return plan("llama-3-8b", quant="q4_k_m", ctx=32768, device="8GB")


def console(width: int = 100, *, terminal: bool = False) -> Console:
    return Console(
        file=io.StringIO(),
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


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_no_line_is_wider_than_the_console(misfit: Plan, width: int) -> None:
    out = console(width)
    render(misfit, out)
    render_side_by_side([misfit, misfit, misfit], out)
    explain(misfit, out)
    render_shown(show("llama-3-8b"), out)
    remedies = misfit.verdict.remedies if misfit.verdict else ()
    flags = [f for r in remedies for f in (*r.flags.values(), r.command)]
    assert "" not in flags
    lines = [x for x in text(out).splitlines() if not x.endswith(tuple(flags))]
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("every", [False, True])
def test_no_name_is_broken(width: int, every: bool, terminal: bool) -> None:
    shown = show("deepseek-v3")
    out = console(width, terminal=terminal)
    render_shown(shown, out, every_tensor=every)
    printed = text(out)
    for row in shown.ledger.rows:
        if every and not row.copies > 1:
            assert row.name in printed
    for step in shown.flow.steps:
        assert step.name in printed
    assert "kv_a_proj_with_mqa.weight" in printed
    assert "post_attention_layernorm.weight" in printed


def test_flags_are_whole_and_settings_are_yaml() -> None:
    p = plan("llama-3-8b", train="lora", device="12GB")
    out = console(60)
    render(p, out)
    block = text(out).split("llama-factory, YAML:")[1].splitlines()[1:]
    settings = dict(x.strip().split(": ", 1) for x in block[: [*block, ""].index("")] if ": " in x)
    assert settings["model_name_or_path"] == "meta-llama/Meta-Llama-3-8B"
    assert settings["finetuning_type"] == "lora"
    llama = plan("llama-3-8b", quant="q4_k_m", ctx=32768, device="8GB")
    out = console(40)
    render(llama, out)
    assert llama.verdict is not None
    for remedy in llama.verdict.remedies:
        assert remedy.flags["llama.cpp"] in text(out)


def test_a_pipe_wraps_nothing_and_has_no_spaces_at_line_ends(
    misfit: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    file = io.StringIO()
    render(misfit, make_console(file))
    render_shown(show("deepseek-v3"), make_console(file))
    lines = file.getvalue().splitlines()
    assert lines == [x.rstrip() for x in lines]
    assert any("reported 0.3 to 1 GiB, not measured)" in x for x in lines)


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


def test_two_sizes_of_a_latent_cache_have_two_names() -> None:
    out = console(160)
    render(plan("deepseek-v3", ctx=64), out)
    assert "KV cache as transformers holds it: expanded" in text(out)
    assert "KV cache: latent, as MLA engines hold it" in text(out)
    out = console(160)
    render(plan("deepseek-v3", ctx=64, engine="vllm"), out)
    assert "expanded" not in text(out)
    assert "KV cache: latent " in text(out)


def test_what_fits_says_how_to_run_it() -> None:
    p = plan("llama-3-8b", quant="q4_k_m", device="24GB")
    out = console(60)
    render(p, out)
    assert p.verdict is not None
    assert p.verdict.flags["llama.cpp"] in text(out).partition("run it with")[2]
