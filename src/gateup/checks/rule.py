"""A rule: a function from what is known about a model to findings; its docstring teaches it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType

from gateup.checks.context import NEEDS, Context, Need
from gateup.checks.finding import SEVERITIES, Finding, Severity


@dataclass(frozen=True)
class Rule:
    """One kind of fault. Calling it gives its findings.

    id       "config.shape": its module's topic, then the fault
    title    what it looks for, one line
    teaches  the fault in plain words, with a worked example (`--explain`, docs/checks.md)
    needs    parts of the context without which it is skipped
    worst    the most severe finding it reports
    """

    id: str
    title: str
    teaches: str
    needs: frozenset[Need]
    run: Callable[[Context], Iterable[Finding]]
    worst: Severity = "error"

    def __call__(self, context: Context) -> list[Finding]:
        found = list(self.run(context))
        rank = SEVERITIES.index
        worse = [f.title for f in found if rank(f.severity) < rank(self.worst)]
        assert not worse, f"{self.id} reports more than a {self.worst}: {worse[0]}"
        return found

    @property
    def severities(self) -> str:
        """ "note", "at worst an error"."""
        article = "an" if self.worst == "error" else "a"
        return self.worst if self.worst == "note" else f"at worst {article} {self.worst}"


def rule(
    id: str, title: str, *, needs: Iterable[Need] = (), worst: Severity = "error"
) -> Callable[[Callable[[Context], Iterable[Finding]]], Rule]:
    """Make a function a Rule. Its docstring is the teaching text: paragraphs, blank lines between,
    a block indented by four more spaces is shown as it stands."""
    wanted = frozenset(needs)
    assert wanted <= set(NEEDS), f"{id} needs {wanted - set(NEEDS)}"

    def make(run: Callable[[Context], Iterable[Finding]]) -> Rule:
        teaches = inspect.getdoc(run)
        assert teaches, f"{id} has no docstring to teach with"
        return Rule(id, title, teaches, wanted, run, worst)

    return make


def rules_of(modules: Iterable[ModuleType]) -> tuple[Rule, ...]:
    """Every Rule that the modules define, in the order of their ids, which are unique."""
    found = [r for m in modules for r in vars(m).values() if isinstance(r, Rule)]
    by_id = {r.id: r for r in found}
    assert len(by_id) == len(found), "two rules have one id"
    return tuple(by_id[i] for i in sorted(by_id))
