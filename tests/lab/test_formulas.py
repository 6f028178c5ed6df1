"""Markdown with formulas: what is a formula, what is code, and that HTML is shown, not taken."""

from __future__ import annotations

from gateup.lab.formulas import markdown, mathml
from gateup.practice.exercise import exercises


def test_formulas_become_mathml_and_code_stays() -> None:
    html = markdown("a $x_1$ and `$y$`\n\n$$\\frac{a}{b}$$\n\n```python\ncost = '$z$'\n```\n")
    assert html.count("<math") == 2
    assert 'display="block"' in html
    assert "<msub>" in html
    assert "<mfrac>" in html
    assert "<code>$y$</code>" in html
    assert "$z$" in html


def test_html_is_shown_and_does_nothing() -> None:
    html = markdown("<script>alert(1)</script> <img src=x onerror=alert(1)>")
    assert "<script" not in html
    assert "<img" not in html


def test_every_problem_can_be_drawn_in_both_languages() -> None:
    for exercise in exercises():
        for language in ("en", "zh"):
            html = markdown(exercise.problem(language))
            assert "\x02" not in html
            assert "$$" not in html


def test_a_formula_is_converted_once() -> None:
    assert mathml("a") is mathml("a")
