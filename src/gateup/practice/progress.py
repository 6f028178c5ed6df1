"""How far the learner has come: one small JSON file that the shell and the lab share.

It lies in the user's data folder ($XDG_DATA_HOME/gateup/practice.json, by default
~/.local/share; %LOCALAPPDATA% on Windows), is replaced in one step, and changed under a lock. A
file that cannot be understood is set aside, not overwritten, and said to be so.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from pathlib import Path

from gateup.errors import InputError

VERSION = 1


@dataclass(frozen=True)
class Record:
    """One exercise: verdicts asked for, when it first passed (ISO, UTC), hints, solution seen."""

    attempts: int = 0
    passed: str = ""
    hints: int = 0
    solution_seen: bool = False


def default_path() -> Path:
    """Where progress lies for this user."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    else:
        base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "gateup" / "practice.json"


class Progress:
    """The records, read anew for every question: another process may have written.

    `problem` says what was wrong with the file, if anything was.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()
        self.problem = ""

    def records(self) -> dict[str, Record]:
        """All records by exercise name."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if data["version"] != VERSION:
                raise ValueError(f"version {data['version']}")
            return {name: _record(values) for name, values in data["exercises"].items()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            self.problem = f"{self.path} cannot be read: {error.strerror}"
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.problem = f"{self.path} is no record of progress: begun anew, the old file is kept"
            with contextlib.suppress(OSError):
                self.path.replace(self.path.with_suffix(".broken.json"))
        return {}

    def of(self, name: str) -> Record:
        return self.records().get(name, Record())

    def tried(self, name: str, passed: bool) -> Record:
        """Counts a verdict; the first that passed is dated."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")

        def change(old: Record) -> Record:
            first = old.passed or (now if passed else "")
            return replace(old, attempts=old.attempts + 1, passed=first)

        return self._change(name, change)

    def reveal_hint(self, name: str, hints: int) -> Record:
        """One hint more, of `hints` there are."""
        return self._change(name, lambda old: replace(old, hints=min(hints, old.hints + 1)))

    def show_solution(self, name: str) -> Record:
        return self._change(name, lambda old: replace(old, solution_seen=True))

    def forget(self, name: str) -> Record:
        return self._change(name, lambda old: Record())

    def _change(self, name: str, change: Callable[[Record], Record]) -> Record:
        """InputError where the file cannot be written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.path.with_suffix(".lock")):
                records = self.records()
                records[name] = change(records.get(name, Record()))
                self._write(records)
                return records[name]
        except OSError as error:
            raise InputError(
                f"progress cannot be kept: {error.strerror}",
                where=str(self.path),
                remedy="set XDG_DATA_HOME to a folder that can be written",
            ) from None

    def _write(self, records: dict[str, Record]) -> None:
        exercises = {name: asdict(record) for name, record in sorted(records.items())}
        text = json.dumps({"version": VERSION, "exercises": exercises}, indent=2) + "\n"
        descriptor, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=".practice-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            Path(temporary).replace(self.path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise


def _record(values: dict[str, object]) -> Record:
    """A record from its file; a field of a wrong type makes the file unsound."""
    known = {f.name: values[f.name] for f in fields(Record) if f.name in values}
    default = asdict(Record())
    if not all(type(value) is type(default[name]) for name, value in known.items()):
        raise TypeError("a field of a wrong type")
    return Record(**known)  # type: ignore[arg-type]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time, where the system has such locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
