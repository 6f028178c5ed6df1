"""What the text says: the same in both languages, numbers from the library only, no known error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateup.errors import UsageError
from gateup.lab.handbook import LANGUAGES, Code, Question, chapter
from gateup.lab.handbook.markdown import document
from gateup.lab.handbook.source import fill, placeholders, raw

ROOT = Path(__file__).parents[3]
DOCS = {"en": "handbook.md", "zh": "handbook.zh-CN.md"}
SECTIONS = [
    "place",
    "classic",
    "gating",
    "tokens",
    "widths",
    "share",
    "shapes",
    "norm",
    "memory",
    "fused",
    "phases",
    "tensor_parallel",
    "experts",
    "lora",
    "quantisation",
    "changing",
    "faults",
    "templates",
    "minute",
    "questions",
]

# Figures that no library computes: a year, and names.
NAMES = re.compile(
    r"\b(2019|GPT-2|Gemma 2|OLMo 2|Llama[ -][123]|Llama-[123]-\d+B|Llama 2 70B|LLaMA-7B|13B|"
    r"Qwen3-0\.6B|Qwen2-72B|Qwen3-30B-A3B|Mixtral-8x7B|DeepSeek-V3|Q\d_\w+|q4_k_m|"
    r"fp16|bf16|fp32|float64|F32|llama-[\w-]+|8k|32k)\b"
)
LITERAL = re.compile(r"\d[\d,]*\.\d+|\d{1,3}(?:,\d{3})+|\d{3,}|\d+\s?%|\d+ (?:MB|GB|GiB)")


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_section_is_there(language: str) -> None:
    sections = chapter(language)
    assert [s.id for s in sections] == SECTIONS
    for section in sections:
        assert section.title
        assert "{{" not in section.markdown
        assert "\n::" not in section.markdown


def test_both_languages_have_the_same_experiments_questions_and_numbers() -> None:
    for one, other in zip(chapter("en"), chapter("zh"), strict=True):
        kinds = [[type(b) for b in s.blocks] for s in (one, other)]
        assert kinds[0] == kinds[1], one.id
        code = [[b.name for b in s.blocks if isinstance(b, Code)] for s in (one, other)]
        assert code[0] == code[1], one.id
    english, chinese = raw("en"), raw("zh")
    for name in english:
        assert sorted(placeholders(english[name])) == sorted(placeholders(chinese[name])), name
        formulas = [len(re.findall(r"^\$\$", t, re.M)) for t in (english[name], chinese[name])]
        assert formulas[0] == formulas[1], name


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_number_is_written_by_hand(language: str) -> None:
    for name, text in raw(language).items():
        bare = NAMES.sub("", re.sub(r"\{\{.+?\}\}", "", text))
        assert not LITERAL.findall(bare), (name, LITERAL.findall(bare))


def test_a_number_by_hand_would_be_found() -> None:
    for text in ("70.2%", "8,030,261,248", "58.7 MB", "14336", "4.58 GiB"):
        assert LITERAL.search(text)


@pytest.mark.parametrize("language", LANGUAGES)
def test_errors_that_others_make_are_not_in_it(language: str) -> None:
    text = document(language)
    assert "58.7 MB" in text  # one output
    assert "117.4 MB" in text  # both
    assert ("56.37 billion" if language == "en" else "563.7 亿") in text
    assert "30.6%" in text
    assert "80.8%" in text
    for wrong in ("117 MB", "5.6 billion", "5.64 billion", "56.4 亿", "2.9959", "60.0%."):
        assert wrong not in text.replace("it is 60.0%.", ""), wrong
    assert "GPT" not in section(language, "norm")
    assert "n_ubatch" in section(language, "memory")
    assert r"2\cdot(H\cdot 4H)\cdot 2 = 16H^2" in section(language, "classic")


def section(language: str, name: str) -> str:
    return next(s.markdown for s in chapter(language) if s.id == name)


def test_chinese_is_punctuated_as_chinese() -> None:
    """No half-width comma, full stop or bracket between Chinese characters."""
    for name, text in raw("zh").items():
        prose = re.sub(r"\$\$.+?\$\$|\$[^$\n]+\$|`[^`\n]+`", "", text, flags=re.S)
        assert not re.search(r"[一-鿿][,;:()?!][一-鿿]", prose), name
        assert "。。" not in prose, name


@pytest.mark.parametrize("language", LANGUAGES)
def test_answers_and_questions(language: str) -> None:
    questions = [b for s in chapter(language) for b in s.blocks if isinstance(b, Question)]
    assert len(questions) == 10
    assert all(q.question and q.answer for q in questions)
    # A section by itself, as plain Markdown, has both.
    assert questions[0].answer in section(language, "questions")


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_document_in_docs_is_what_the_command_prints(language: str) -> None:
    """Where it fails: gateup handbook --lang en > docs/handbook.md, and zh likewise."""
    assert (ROOT / "docs" / DOCS[language]).read_text("utf-8") == document(language)


def test_a_language_it_is_not_written_in() -> None:
    with pytest.raises(UsageError, match="no language 'fr'"):
        chapter("fr")


def test_a_misspelt_number_is_an_error() -> None:
    assert fill("{{llama-3-8b/I}} {{llama-3-8b/I|plain}}", "en") == "14,336 14336"
    with pytest.raises(KeyError):
        fill("{{llama-3-8b/J}}", "en")
