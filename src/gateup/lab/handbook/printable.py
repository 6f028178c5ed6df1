"""The chapter as one HTML page: for the screen, and for paper. No script, nothing fetched."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from gateup import __version__
from gateup.lab.formulas import markdown, plain_code
from gateup.lab.handbook.runner import Output, outputs
from gateup.lab.handbook.source import (
    ABOUT,
    ANSWER,
    TITLES,
    Block,
    Code,
    Question,
    Section,
    chapter,
)

_CONTENTS = {"en": "Contents", "zh": "目录"}
_ANSWERS = {"en": "Answers", "zh": "答案"}

_STYLE = """
:root{color-scheme:light dark;--fg:#1b1d21;--soft:#5d636e;--line:#dcdfe4;--panel:#f5f6f8;--bg:#fff}
@media (prefers-color-scheme:dark){:root{--fg:#e8eaee;--soft:#9aa1ad;--line:#30343c;--panel:#1c1f25;
--bg:#14161a}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.6 system-ui,sans-serif}
main{max-width:46rem;margin:0 auto;padding:1rem}
h1{font-size:1.7rem;line-height:1.25}h2{font-size:1.25rem;margin:2.25rem 0 .5rem}
h3{font-size:1rem;margin:1.25rem 0 .25rem}
a{color:inherit}.about,footer{color:var(--soft);font-size:.9rem}
code,pre{font:.8125rem/1.45 ui-monospace,monospace}
pre{background:var(--panel);border-radius:6px;padding:.6rem .8rem;white-space:pre-wrap;
overflow-wrap:anywhere}
pre.out{background:none;border-left:3px solid var(--line);border-radius:0}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums;display:block;
overflow-x:auto}
th,td{padding:.25rem .9rem .25rem 0;text-align:right;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left}
math[display=block]{margin:.75rem 0;overflow-x:auto}
svg{display:block;margin:.5rem 0}
details{margin:.25rem 0 1rem}summary{cursor:pointer;color:var(--soft)}
.question{font-weight:600;margin:1rem 0 0}
.answers{display:none}
@media print{:root{color-scheme:light;--fg:#000;--soft:#444;--line:#bbb;--panel:#f5f6f8;--bg:#fff}
body{font-size:10.5pt}main{max-width:none;padding:0}h2,h3{break-after:avoid}
pre,svg,table,math{break-inside:avoid}details{display:none}.answers{display:block}
@page{margin:18mm 16mm}}
"""


def page(language: str) -> str:
    """The page, its experiments run on this machine.

    Raises UsageError for an unknown language, ExperimentError where an experiment does not run.
    """
    sections, results = chapter(language), outputs()
    links = "".join(f'<li><a href="#{s.id}">{escape(s.title)}</a></li>' for s in sections)
    body = "\n".join(section_html(s, results, language) for s in sections)
    about = ABOUT[language].format(version=__version__)
    return (
        f'<!doctype html>\n<html lang="{language}"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{TITLES[language]} · gateup</title><style>{_STYLE}</style></head><body><main>"
        f'<h1>{TITLES[language]}</h1><p class="about">{escape(about)}</p>'
        f"<nav><h2>{_CONTENTS[language]}</h2><ol>{links}</ol></nav>\n{body}\n"
        f"{_answers(sections, language)}<footer>gateup {__version__}</footer>"
        "</main></body></html>\n"
    )


def section_html(section: Section, results: Mapping[str, Output], language: str) -> str:
    """One section, its experiments with what they gave (nothing where `results` lacks them)."""
    blocks = "".join(block_html(b, results, language) for b in section.blocks)
    return f'<section><h2 id="{section.id}">{escape(section.title)}</h2>{blocks}</section>'


def block_html(block: Block, results: Mapping[str, Output], language: str) -> str:
    """One block as HTML. Formulas are MathML, code and its output are escaped."""
    if isinstance(block, Code):
        return plain_code(block.source) + output_html(results.get(block.name))
    if isinstance(block, Question):
        return (
            f'<div class="question">{markdown(block.question)}</div>'
            f"<details><summary>{ANSWER[language]}</summary>{markdown(block.answer)}</details>"
        )
    return markdown(block.markdown)


def output_html(output: Output | None) -> str:
    """What an experiment printed and drew."""
    if output is None:
        return ""
    text = output.text.rstrip("\n")
    printed = f'<pre class="out"><code>{escape(text)}</code></pre>' if text else ""
    return printed + output.drawing


def _answers(sections: tuple[Section, ...], language: str) -> str:
    """On paper nothing unfolds: the answers stand at the end."""
    answers = [b for s in sections for b in s.blocks if isinstance(b, Question)]
    items = "".join(f"<li>{markdown(a.answer)}</li>" for a in answers)
    return f'<section class="answers"><h2>{_ANSWERS[language]}</h2><ol>{items}</ol></section>'
