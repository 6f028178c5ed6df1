"""How a number is written in the text. {{llama-3-8b/mlp|many}}: "5.64 billion", "56.4 亿"."""

from __future__ import annotations

from collections.abc import Callable

from gateup.account.figure import Figure
from gateup.account.report import units

Number = int | float | Figure | str


def _percent(value: float, _: str) -> str:
    return f"{100 * value:.1f}%"


def _whole_percent(value: float, _: str) -> str:
    return f"{100 * value:.0f}%"


def _many(value: float, language: str) -> str:
    """Billions and millions, 亿 and 万."""
    if language == "zh":
        for scale, name in ((10**8, "亿"), (10**4, "万")):
            if value >= scale:
                return f"{value / scale:,.4g} {name}".replace(",", "")
        return f"{value:,.4g}"
    for scale, name in ((10**9, "billion"), (10**6, "million")):
        if value >= scale:
            return f"{value / scale:,.4g} {name}"
    return f"{value:,.4g}"


def _decimal(step: int, unit: str) -> Callable[[float, str], str]:
    return lambda value, _: f"{value / step:,.1f} {unit}"


WRITERS: dict[str, Callable[[float, str], str]] = {
    "int": lambda v, _: units.integer(v),
    "plain": lambda v, _: f"{v:.0f}",  # in formulas
    "percent": _percent,
    "percent0": _whole_percent,
    "many": _many,
    "x1": lambda v, _: f"{v:,.1f}",
    "x2": lambda v, _: f"{v:,.2f}",
    "x3": lambda v, _: f"{v:,.3f}",
    "x4": lambda v, _: f"{v:.4f}".replace("-", "−"),
    "g": lambda v, _: f"{v:,.4g}",
    "MB": _decimal(10**6, "MB"),
    "GB": _decimal(10**9, "GB"),
    "MiB": _decimal(1 << 20, "MiB"),
    "GiB": _decimal(1 << 30, "GiB"),
    "KiB": _decimal(1 << 10, "KiB"),
}


def write(number: Number, writer: str | None, language: str) -> str:
    """The number as text; without a writer by its type: whole numbers, shares, others short.

    Raises KeyError for an unknown writer.
    """
    unit = number.unit if isinstance(number, Figure) else ""
    value = number.value if isinstance(number, Figure) else number
    if isinstance(value, str):
        return value
    if writer is None:
        writer = "percent" if unit == "share" else "int" if isinstance(value, int) else "g"
    return WRITERS[writer](value, language)
