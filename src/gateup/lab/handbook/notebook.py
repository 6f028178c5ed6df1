"""The chapter as a Jupyter notebook, built from the same source; without outputs, to be run."""

from __future__ import annotations

import json

from gateup import __version__
from gateup.lab.handbook.source import ABOUT, ANSWER, TITLES, Block, Code, Question, chapter

# What the cells import beside gateup; "torch" may be missing.
_RUN = {
    "en": "Run the cells from the top: later ones use what earlier ones define. "
    'They need `pip install "gateup"`; the one about autograd is skipped without torch.',
    "zh": '请从头依次运行：后面的代码会用到前面的定义。只需 `pip install "gateup"`；'
    "没有安装 torch 时，autograd 那一格会自动跳过。",
}


def notebook(language: str) -> str:
    """The .ipynb as text (nbformat 4.5). Raises UsageError for an unknown language."""
    sections = chapter(language)
    about = ABOUT[language].format(version=__version__)
    cells = [_markdown("title", f"# {TITLES[language]}\n\n{about}\n\n{_RUN[language]}")]
    for section in sections:
        cells.append(_markdown(section.id, f"## {section.title}"))
        cells += [
            _cell(f"{section.id}-{i}", block, language) for i, block in enumerate(section.blocks)
        ]
    document = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python"},
            "title": TITLES[language],
        },
        "cells": cells,
    }
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def _cell(name: str, block: Block, language: str) -> dict[str, object]:
    if isinstance(block, Code):
        return {
            "id": name,
            "cell_type": "code",
            "metadata": {"tags": [block.name]},
            "execution_count": None,
            "outputs": [],
            "source": block.source.rstrip("\n"),
        }
    if isinstance(block, Question):
        folded = f"<details><summary>{ANSWER[language]}</summary>\n\n{block.answer}\n\n</details>"
        return _markdown(name, f"**{block.question}**\n\n{folded}")
    return _markdown(name, block.markdown)


def _markdown(name: str, text: str) -> dict[str, object]:
    return {"id": name, "cell_type": "markdown", "metadata": {}, "source": text}
