"""The pages: a module in pages/, a table of texts in words/, and an entry here."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the lab.

    name   of its module in pages/, of its texts in words/, and of its path
    needs  a package without which there is no such page: it gets no entry in the navigation
    """

    name: str
    needs: str = ""

    @property
    def path(self) -> str:
        return f"/{self.name}"

    @property
    def module(self) -> str:
        return f"gateup.lab.pages.{self.name}"

    @property
    def available(self) -> bool:
        return not self.needs or _installed(self.needs)


# In the order of the navigation.
PAGES: tuple[Page, ...] = (
    Page("gate"),
    Page("model"),
    Page("context"),
    Page("memory"),
    Page("split"),
    Page("neurons"),
    Page("exercises"),
    Page("handbook", needs="gateup.lab.handbook"),
)


def available() -> tuple[Page, ...]:
    """The pages this installation has."""
    return tuple(page for page in PAGES if page.available)


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of a parent package
        return False
