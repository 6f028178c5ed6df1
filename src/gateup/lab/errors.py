"""Errors that the lab words itself, so that each page can say them in its language."""

from __future__ import annotations

from gateup.errors import UsageError
from gateup.lab.words import texts


class LabError(UsageError):
    """The text `key` of a page's table with `values` put in, and "KEY.remedy" where there is one.

    As an exception it reads English, as every GateupError.
    """

    def __init__(self, page: str, key: str, **values: object) -> None:
        self.page, self.key, self.values = page, key, values
        what, remedy = self.said("en")
        super().__init__(what, remedy=remedy)

    def said(self, language: str) -> tuple[str, str | None]:
        """(what, remedy) in that language."""
        words = texts(self.page, language)
        remedy = words.get(f"{self.key}.remedy")
        what = words[self.key].format(**self.values)
        return what, None if remedy is None else remedy.format(**self.values)
