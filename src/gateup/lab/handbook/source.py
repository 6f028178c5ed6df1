"""From the text's files to sections with their numbers put in.

A section's file begins with "# Title". Two lines of our own, each by itself:

    ::cell NAME          the experiment code/NAME.py, to be run here
    ::question TEXT      a question; what follows, up to the next one, is its answer

and {{GROUP/KEY}} or {{GROUP/KEY|WRITER}} for a number (numbers.py, writers.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from gateup.errors import UsageError
from gateup.lab.handbook.numbers import number
from gateup.lab.handbook.writers import write

LANGUAGES = ("en", "zh")
TITLES = {
    "en": "The gated feed-forward network",
    "zh": "门控前馈网络",
}
ABOUT = {
    "en": "Every number in the text is computed by gateup {version} when the text is made; every "
    "experiment runs on this machine.",
    "zh": "正文中的每个数字都由 gateup {version} 在生成时算出，每个实验都在本机上运行。",
}
ANSWER = {"en": "Answer", "zh": "答案"}

_PLACE = re.compile(r"\{\{([^{}|]+?)(?:\|(\w+))?\}\}")
_MARK = re.compile(r"^::(cell|question) (.+)$", re.M)


@dataclass(frozen=True, slots=True)
class Prose:
    """Markdown, LaTeX between dollar signs included."""

    markdown: str


@dataclass(frozen=True, slots=True)
class Code:
    """An experiment: its name and its source."""

    name: str
    source: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and its answer, which readers see when they ask for it."""

    question: str
    answer: str


Block = Prose | Code | Question


@dataclass(frozen=True, slots=True)
class Section:
    """id: the same in both languages ("widths")."""

    id: str
    title: str
    blocks: tuple[Block, ...]

    @property
    def markdown(self) -> str:
        """The whole section as plain Markdown, code in fences and every answer under its
        question."""
        return "\n\n".join(_plain(block) for block in self.blocks) + "\n"


def _plain(block: Block) -> str:
    if isinstance(block, Prose):
        return block.markdown
    if isinstance(block, Code):
        return f"```python\n{block.source}```"
    return f"**{block.question}**\n\n{block.answer}"


def check_language(language: str) -> str:
    """`language`, if the handbook is written in it. Raises UsageError."""
    if language not in LANGUAGES:
        raise UsageError(f"no language {language!r}", expected=", ".join(LANGUAGES))
    return language


@cache
def chapter(language: str) -> tuple[Section, ...]:
    """Every section, in order. Raises UsageError for a language there is none in."""
    folder = files(__package__) / "text" / check_language(language)
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".md"))
    return tuple(_section(name, (folder / name).read_text("utf-8"), language) for name in names)


def raw(language: str) -> dict[str, str]:
    """Section id -> its text as written, placeholders and all."""
    folder = files(__package__) / "text" / check_language(language)
    return {
        _id(entry.name): entry.read_text("utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".md")
    }


def code(name: str) -> str:
    """The source of an experiment."""
    return (files(__package__) / "code" / f"{name}.py").read_text("utf-8")


def fill(text: str, language: str) -> str:
    """The text with every placeholder replaced. Raises KeyError for a number that is not there."""
    return _PLACE.sub(lambda m: write(number(m[1].strip()), m[2], language), text)


def placeholders(text: str) -> list[str]:
    """The numbers a text asks for, by name."""
    return [m[1].strip() for m in _PLACE.finditer(text)]


def _id(name: str) -> str:
    return name.removesuffix(".md").partition("_")[2]


def _section(name: str, text: str, language: str) -> Section:
    first, _, rest = fill(text, language).partition("\n")
    return Section(_id(name), first.removeprefix("# ").strip(), tuple(_blocks(rest)))


def _blocks(text: str) -> Iterator[Block]:
    marks = list(_MARK.finditer(text))
    head = text[: marks[0].start()] if marks else text
    if head.strip():
        yield Prose(head.strip())
    ends = [m.start() for m in marks[1:]] + [len(text)]
    for mark, end in zip(marks, ends, strict=False):  # without marks there is an end too many
        body = text[mark.end() : end].strip()
        if mark[1] == "question":
            yield Question(mark[2].strip(), body)
            continue
        yield Code(mark[2].strip(), code(mark[2].strip()))
        if body:
            yield Prose(body)
