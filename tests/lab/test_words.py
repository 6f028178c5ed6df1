"""Both languages say everything."""

from __future__ import annotations

import pkgutil
import re
import string
from importlib import import_module
from pathlib import Path

import pytest

from gateup.lab import words
from gateup.lab.errors import LabError
from gateup.lab.registry import PAGES
from gateup.lab.words import preferred, texts
from gateup.practice import messages
from gateup.practice.exercise import Text, exercises

TABLES = [m.name for m in pkgutil.iter_modules(words.__path__)]


def _holes(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize("name", TABLES)
def test_both_languages_have_the_same_texts_with_the_same_numbers(name: str) -> None:
    module = import_module(f"gateup.lab.words.{name}")
    assert module.EN.keys() == module.ZH.keys()
    for key, text in module.EN.items():
        assert text.strip(), key
        assert module.ZH[key].strip(), key
        assert _holes(text) == _holes(module.ZH[key]), key


def test_every_page_has_a_title_and_says_what_it_is_about() -> None:
    for page in PAGES:
        for language in ("en", "zh"):
            table = texts(page.name, language)
            assert table["title"]
            assert table["about"]


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("en-US,en;q=0.9,zh;q=0.8", "en"),
        ("de-DE,zh-TW;q=0.5", "zh"),
        ("fr", "en"),
    ],
)
def test_the_browsers_language(header: str, language: str) -> None:
    assert preferred(header) == language


def test_errors_of_the_lab_s_own_are_said_in_both_languages() -> None:
    error = LabError("split", "error.no_experts", ep=4, layers="0-31", name="Llama")
    assert str(error) == (
        "expert parallel 4, and layers 0-31 of Llama have no experts\n  expected: expert parallel 1"
    )
    assert error.said("zh").what == "专家并行度为 4，而 Llama 的第 0-31 层没有专家"
    assert error.said("zh").expected == "专家并行度 1"
    assert error.said("zh").remedy is None


def test_chinese_is_punctuated_as_chinese() -> None:
    """No half-width comma, colon or semicolon beside a Chinese character, in any text of ours."""
    package = _LAB.parent
    found = {
        (name, key): text
        for name in TABLES
        for key, text in import_module(f"gateup.lab.words.{name}").ZH.items()
    }
    found |= {
        ("messages", key): said.zh for key, said in vars(messages).items() if isinstance(said, Text)
    }
    for exercise in exercises():
        said = [exercise.title, *exercise.hints, *exercise.mistakes.values()]
        found[exercise.name, "texts"] = "\n".join(x.zh for x in said)
        found[exercise.name, "problem"] = exercise.problem("zh")
    for path in [*package.glob("lab/handbook/text/zh/*.md"), *_ROOT.glob("*.zh-CN.md")]:
        found[path.name, ""] = path.read_text("utf-8")
    assert len(found) > 300
    for where, text in found.items():
        # A hole may be filled with Chinese; code and formulas are as they are.
        bare = re.sub(r"```.*?```|\$\$.+?\$\$|\$[^$\n]+\$|`[^`\n]*`", "", text, flags=re.S)
        bare = re.sub(r"\{[^}]*\}", "中", bare)
        wrong = re.findall(r".{0,9}(?:[一-鿿] ?[,:;?!]|[,:;?!][一-鿿]).{0,9}", bare)
        assert not wrong, (where, wrong)


_LAB = Path(words.__file__).parents[1]
_ROOT = Path(__file__).parents[2]


def test_every_error_of_the_lab_s_own_has_its_words() -> None:
    raised = [
        (path.name, page, key)
        for path in sorted(_LAB.rglob("*.py"))
        for page, key in re.findall(r'LabError\(\s*"(\w+)", "([\w.]+)"', path.read_text())
    ]
    assert len(raised) >= 9
    for file, page, key in raised:
        assert key in texts(page, "en"), file
        assert key in texts(page, "zh"), file
