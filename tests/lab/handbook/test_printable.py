"""The page to print: whole, without network, answers for the screen and for paper."""

from __future__ import annotations

import re

import pytest

from gateup.lab.handbook import LANGUAGES, Code, Prose, Question, chapter
from gateup.lab.handbook import printable as module
from gateup.lab.handbook.printable import block_html, page
from gateup.lab.handbook.runner import ExperimentError, Output, experiments, outputs, run

RESULTS = {
    cell.name: Output(f"<{cell.name}>\n", "<svg></svg>" if cell.name == "gating" else "")
    for cell in experiments()
}


@pytest.fixture(autouse=True)
def given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs at once; the notebook's test runs the experiments."""
    monkeypatch.setattr(module, "outputs", lambda: RESULTS)


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_is_one_page(language: str) -> None:
    html = page(language)
    assert html.startswith(f'<!doctype html>\n<html lang="{language}">')
    assert "default-src 'none'" in html
    assert "<script" not in html
    assert not re.search(r"""(src|href)=["'](?!#)""", html)
    for section in chapter(language):
        assert f'<h2 id="{section.id}">' in html
        assert f'href="#{section.id}"' in html


@pytest.mark.parametrize("language", LANGUAGES)
def test_formulas_are_mathml(language: str) -> None:
    html = re.sub(r"<pre.*?</pre>", "", page(language), flags=re.S)
    assert html.count("<math") > 60
    assert "$" not in html
    assert not re.search(r"\\[a-z]+", html), "LaTeX that was not converted"


def test_answers_are_folded_and_printed_at_the_end() -> None:
    html = page("en")
    assert html.count("<details>") == 10
    last = html[html.index('<section class="answers">') :]
    assert last.count("<li>") == 10
    assert "@media print" in html
    assert "details{display:none}.answers{display:block}" in html


def test_outputs_stand_under_their_experiment() -> None:
    html = page("zh")
    assert html.count('<pre class="out">') == len(RESULTS)
    assert "&lt;tokens&gt;" in html
    assert html.count("<svg>") == 1
    alone = block_html(Code("x", "a < b\n"), {}, "en")
    assert alone == "<pre><code>a &lt; b\n</code></pre>"


def test_blocks() -> None:
    assert block_html(Prose("**a** $x$"), {}, "en").startswith("<p><strong>a</strong> <math")
    folded = block_html(Question("why?", "because"), {}, "zh")
    assert "<summary>答案</summary><p>because</p>" in folded


def test_cells_work_as_in_a_notebook() -> None:
    class_ = "class D:\n    def _repr_html_(self):\n        return '<b>'\n"
    results = run(
        [
            Code("one", "x = 2\nprint('x', x)\n"),
            Code("two", "print(x + 1)\nx * 10\n"),
            Code("three", class_ + "D()\n"),
        ]
    )
    assert results["one"] == Output("x 2\n")
    assert results["two"].text == "3\n"
    assert results["three"] == Output("", "<b>")


def test_without_torch_its_cell_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    saved = next(c for c in experiments() if c.name == "saved")
    assert run([saved])["saved"] == Output("torch: -\n")


def test_experiments_that_do_not_run_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    outputs.cache_clear()
    with pytest.raises(ExperimentError, match="experiments stopped: exit code 1"):
        outputs()
