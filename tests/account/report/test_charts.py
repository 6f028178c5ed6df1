"""The plots show the figures: crossings where the lines cross, columns as high as the phases."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from gateup.account.flops import decode_flops, prefill_flops
from gateup.account.plan import plan
from gateup.account.report import charts
from gateup.model import presets


def points(chart: str, name: str) -> list[tuple[float, float]]:
    """A line's points in the drawing's units."""
    found = re.search(rf'points="([^"]+)"[^>]*><title>{re.escape(name)}</title>', chart)
    assert found is not None, name
    return [(float(x), float(y)) for x, y in (p.split(",") for p in found[1].split())]


def dots(chart: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', chart)]


def height_at(line: list[tuple[float, float]], x: float) -> float:
    """The line's y at x, between its two nearest points."""
    for (x0, y0), (x1, y1) in pairwise(line):
        if x0 <= x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    raise AssertionError(f"{x} is outside the line")


@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v3", "gpt-oss-20b", "gemma-3-1b"])
def test_dots_lie_where_attention_meets_the_mlp(name: str) -> None:
    chart = charts.flops_over_context(plan(name, ctx=1024))
    mlp = points(chart, "MLP")[0][1]
    lines = [
        points(chart, "attention, token at that context"),
        points(chart, "attention, mean of a prefill"),
    ]
    marked = dots(chart)
    assert len(marked) == 2
    for (x, y), line in zip(marked, lines, strict=True):
        assert y == pytest.approx(mlp, abs=0.2)
        assert height_at(line, x) == pytest.approx(mlp, abs=1.5)  # of 204 units of height


@pytest.mark.parametrize("name", ["deepseek-v3", "mistral-7b-v0.1"])
def test_the_lines_are_the_ledgers_flops(name: str) -> None:
    spec = presets.spec(name)
    chart = charts.flops_over_context(plan(name, ctx=1024))
    token = points(chart, "attention, token at that context")
    mean = points(chart, "attention, mean of a prefill")
    floor = token[0][1]
    # the ratio of the two last points, whatever the scale
    meeting = plan(name).crossover.model.prefill
    last = int(meeting * 1.3) if meeting else 2 * (spec.max_position_embeddings or 0)
    expected = decode_flops(spec, last, mla="expanded").attention / (
        prefill_flops(spec, last).attention / last
    )
    drawn = (floor - token[-1][1]) / (floor - mean[-1][1])
    assert drawn == pytest.approx(expected, rel=0.02)


def test_where_attention_never_catches_up_no_dot_is_drawn() -> None:
    chart = charts.flops_over_context(plan("mistral-7b-v0.1", ctx=1024))
    assert dots(chart) == []
    assert "no token sees more than 4096 keys" in chart


def test_a_model_without_attention_or_mlp_has_no_such_plot() -> None:
    assert charts.widths(plan("llama-3-8b", ctx=64)) == ""
    assert charts.kv_over_context(plan("qwen3-0.6b", ctx=64, train="full")) == ""


def test_columns_are_the_phases() -> None:
    p = plan("llama-3-8b", ctx=4096, device="rtx4090")
    chart = charts.memory(p)
    for phase in p.memory.peaks:
        assert f">{phase}<" in chart
    heights: dict[str, float] = {}
    for height, label in re.findall(r'height="([\d.]+)" class="c-[^"]*"><title>(\w+):', chart):
        heights[label] = max(heights.get(label, 0.0), float(height))
    sizes = p.memory.by_group()
    assert heights["weights"] / heights["kv"] == pytest.approx(
        sizes["weights"] / sizes["kv"], rel=0.02
    )
