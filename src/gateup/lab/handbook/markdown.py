"""The chapter as one Markdown document, as docs/handbook.md has it."""

from __future__ import annotations

from gateup import __version__
from gateup.lab.handbook.source import (
    ABOUT,
    ANSWER,
    TITLES,
    Block,
    Code,
    Prose,
    Question,
    chapter,
)


def document(language: str) -> str:
    """Text, experiments without their outputs, answers folded. Raises UsageError."""
    parts = [f"# {TITLES[language]}", ABOUT[language].format(version=__version__)]
    for section in chapter(language):
        parts.append(f"## {section.title}")
        parts += [_block(block, language) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def _block(block: Block, language: str) -> str:
    if isinstance(block, Prose):
        return block.markdown
    if isinstance(block, Code):
        return f"```python\n{block.source}```"
    assert isinstance(block, Question)
    folded = f"<details><summary>{ANSWER[language]}</summary>\n\n{block.answer}\n\n</details>"
    return f"**{block.question}**\n\n{folded}"
