"""What a rule reports: how bad it is, what shows it, why it happens, what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
SHOWN = 6  # pieces of evidence that a finding keeps


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that shows the fault.

    subject   tensor, field or file
    found     what is there
    expected  what should be there; "" where nothing definite is expected
    source    where the expectation comes from: "config.json, field intermediate_size"
    """

    subject: str
    found: str
    expected: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault.

    rule      id of the rule that found it
    severity  "error": it will fail or compute garbage; "warning": it probably is not what was
              meant; "note": worth knowing, nothing is wrong
    title     one line that stands alone, with its number: "5 of 24 layers have another width"
    evidence  the first few things that show it, at most SHOWN of those given
    cause     why, in plain words
    remedy    what to do, computed; "" where there is nothing to do
    numbers   the figures of title and remedy by name, raw
    more      pieces of evidence that were given and are not kept
    """

    rule: str
    severity: Severity
    title: str
    evidence: tuple[Evidence, ...] = ()
    cause: str = ""
    remedy: str = ""
    numbers: Mapping[str, int | float | str] = field(default_factory=dict)
    more: int = 0

    def __post_init__(self) -> None:
        rest = len(self.evidence) - SHOWN
        if rest > 0:
            object.__setattr__(self, "evidence", self.evidence[:SHOWN])
            object.__setattr__(self, "more", self.more + rest)
