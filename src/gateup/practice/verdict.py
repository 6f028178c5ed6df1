"""What the judge says, as data: for the console, for JSON, for the editor in the browser."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from gateup.practice.compare import Leaf


@dataclass(frozen=True)
class TracebackLine:
    """A line of the learner's own code on the way to an error."""

    number: int
    function: str
    text: str


@dataclass(frozen=True)
class CaseResult:
    """One case: its status (one of exercise.STATUSES), time, the comparison, what went wrong.

    `seconds` are from the inputs' sending to the answer's arrival. `compared` is None where
    nothing came to compare. `message` says in words what was recognised, or the status.
    """

    name: str
    status: str
    seconds: float
    compared: Leaf | None = None
    error: str = ""
    lines: tuple[TracebackLine, ...] = ()
    mistake: str | None = None
    message: str = ""

    @property
    def passed(self) -> bool:
        return self.status == "passed"


@dataclass(frozen=True)
class GuardState:
    """A guard, what it does in words, and why it is not in force where it is not."""

    name: str
    label: str
    in_force: bool
    reason: str = ""


@dataclass(frozen=True)
class Verdict:
    """One submission judged.

    `seed` makes the same cases again. `mistake` is the first recognised, `message` the same in
    words; `hint` is the next one the learner has not seen, with its number from 1.
    `cpu_seconds` and `peak_mib` are of the learner's process, as the kernel counted them.
    """

    exercise: str
    passed: bool
    seed: int
    cases: tuple[CaseResult, ...]
    guards: tuple[GuardState, ...]
    seconds: float
    cpu_seconds: float
    peak_mib: float
    output: str = ""
    output_cut: bool = False
    mistake: str | None = None
    message: str = ""
    hint: str = ""
    hint_number: int = 0
    hints: int = field(default=0)

    def different_failures(self) -> list[CaseResult]:
        """The failed cases, without those of which nothing new could be said."""
        told: dict[tuple[str, str, str], CaseResult] = {}
        for case in self.cases:
            if not case.passed and case.status != "not run":
                told.setdefault((case.status, case.message, case.error), case)
        return list(told.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values alone; floats that JSON has no number for become None."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and value - value != 0:  # inf or NaN
        return None
    return value
