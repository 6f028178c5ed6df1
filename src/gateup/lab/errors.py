"""Errors that the lab words itself, so that each page can say them in its language."""

from __future__ import annotations

from typing import NamedTuple

from gateup.errors import UsageError
from gateup.lab.words import texts


class Said(NamedTuple):
    """An error in one language."""

    what: str
    expected: str | None
    remedy: str | None


class LabError(UsageError):
    """The text `key` of a page's table with `values` put in; also KEY.expected and KEY.remedy.

    As an exception it reads English, as every GateupError.
    """

    def __init__(self, page: str, key: str, **values: object) -> None:
        self.page, self.key, self.values = page, key, values
        english = self.said("en")
        super().__init__(english.what, expected=english.expected, remedy=english.remedy)

    def said(self, language: str) -> Said:
        words = texts(self.page, language)

        def put(key: str) -> str | None:
            return words[key].format(**self.values) if key in words else None

        return Said(
            words[self.key].format(**self.values),
            put(f"{self.key}.expected"),
            put(f"{self.key}.remedy"),
        )
