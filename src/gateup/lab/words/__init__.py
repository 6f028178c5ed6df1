"""What the pages say: one module a page, with a table of texts for each language.

Every module has EN and ZH with the same keys; "title" and "about" are what the navigation and the
front page show.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

LANGUAGES = ("en", "zh")
NAMES: Mapping[str, str] = {"en": "English", "zh": "中文"}


def texts(page: str, language: str) -> Mapping[str, str]:
    """The table of a page ("frame": what surrounds them all)."""
    module = import_module(f"{__name__}.{page}")
    table: Mapping[str, str] = module.ZH if language == "zh" else module.EN
    return table


def preferred(header: str) -> str:
    """The language for an Accept-Language header: Chinese where it comes before English."""
    for item in header.lower().split(","):
        tag = item.split(";")[0].strip()
        if tag[:2] in LANGUAGES:
            return tag[:2]
    return "en"
