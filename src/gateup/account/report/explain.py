"""Each figure of a plan with its formula, the numbers put in, and where the formula is from."""

from __future__ import annotations

from rich.console import Console

from gateup.account.figure import Figure
from gateup.account.plan import Plan
from gateup.account.report import units
from gateup.account.report.tables import heading, line


def explain(plan: Plan, console: Console) -> None:
    """Print every figure: its JSON path, value, formula, numbers and source."""
    heading(console, f"How each figure of {plan.spec.name} comes about")
    for path, figure in plan.figures.items():
        _one(console, path, figure)
    for item in plan.memory.items:
        _one(console, f"memory.items[{item.label}]", item.figure)


def _one(console: Console, path: str, figure: Figure) -> None:
    unit = "B" if figure.unit == "bytes" else figure.unit
    exact = units.raw(figure.value)
    line(console, f"{path} {units.tagged(figure)}  ({exact} {unit}, {figure.kind})", "bold")
    if figure.formula:
        line(console, f"    {figure.formula}")
    if figure.numbers and figure.numbers != figure.formula:
        line(console, f"    {figure.numbers}")
    if figure.source:
        line(console, f"    source: {figure.source}", "dim")
