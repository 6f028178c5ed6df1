"""Formulas as MathML, which browsers draw themselves."""

from __future__ import annotations

from functools import cache

from latex2mathml.converter import convert


@cache
def mathml(latex: str, *, block: bool = False) -> str:
    """The formula as a <math> element."""
    return convert(latex, display="block" if block else "inline")
