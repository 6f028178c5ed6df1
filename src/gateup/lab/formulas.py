"""Formulas as MathML, which browsers draw themselves, and Markdown with such formulas in it."""

from __future__ import annotations

import re
from functools import cache
from html import escape

import markdown2  # type: ignore[import-untyped]
from latex2mathml.converter import convert

# Code first: a dollar sign in it is no formula. Then $$ … $$, then $ … $ on one line.
_PIECES = re.compile(
    r"(?P<code>```.*?```|`[^`\n]+`)|\$\$(?P<block>.+?)\$\$|\$(?P<line>[^$\n]+?)\$", re.DOTALL
)
_EXTRAS = ("fenced-code-blocks", "tables", "cuddled-lists", "code-friendly")
# Markdown leaves a word alone; the signs around it are in no text of ours.
_HOLD, _HELD = "\x02{}\x03", re.compile("\x02(\\d+)\x03")


@cache
def mathml(latex: str, *, block: bool = False) -> str:
    """The formula as a <math> element."""
    return convert(latex, display="block" if block else "inline")


def markdown(text: str) -> str:
    """Markdown with LaTeX formulas as HTML. Raw HTML in it is shown, not taken."""
    formulas: list[str] = []

    def hold(found: re.Match[str]) -> str:
        if found["code"] is not None:
            return found["code"]
        latex = found["block"] if found["block"] is not None else found["line"]
        formulas.append(mathml(latex.strip(), block=found["block"] is not None))
        return _HOLD.format(len(formulas) - 1)

    held = _PIECES.sub(hold, text)
    html: str = markdown2.markdown(held, extras=list(_EXTRAS), safe_mode="escape")
    return _HELD.sub(lambda m: formulas[int(m[1])], html)


def plain_code(source: str) -> str:
    """Source as a block of code."""
    return f"<pre><code>{escape(source)}</code></pre>"
