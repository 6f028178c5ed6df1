"""The judge: a submission's source in, a verdict out.

The learner's code runs in a process of its own (`server.py`, `sandbox/`). It gets inputs and
returns values; the expected ones are computed and compared here. Code that patches numpy, ends
early, prints "passed" or writes files gains nothing: only right values for the held-out cases of a
seed drawn for this run pass.
"""

from __future__ import annotations

import atexit
import secrets
import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from gateup.errors import GateupError
from gateup.practice import messages
from gateup.practice.compare import compare, mistake
from gateup.practice.exercise import Case, Exercise, Outcome, Tensor
from gateup.practice.sandbox import wire
from gateup.practice.server import OUTPUT_LIMIT, EndedError, JudgeError, Server, Session
from gateup.practice.verdict import CaseResult, GuardState, TracebackLine, Verdict

SOURCE_LIMIT = 256 << 10  # bytes of a submission
SEEDS = 1 << 31
_WAITING = 2  # seconds of waiting for each second of CPU, on a busy machine
_QUEUE = 60.0  # seconds a submission waits for its turn


class BusyError(GateupError):
    """More submissions at once than the judge runs, for too long."""


class Judge:
    """Fork servers, started when first needed. Thread-safe; close it, or use it in a `with`.

    At most `concurrency` submissions run at a time. `without` leaves guards out, all but the uid:
    it is there to test the others.
    """

    def __init__(self, concurrency: int = 2, without: Iterable[str] = ()) -> None:
        self._turns = threading.BoundedSemaphore(concurrency)
        self._lock = threading.Lock()
        self._servers: dict[str, Server] = {}
        self._without = tuple(without)

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm(self, needs: str) -> Server:
        """The fork server with numpy, or with torch as well: started if it is not running."""
        with self._lock:
            server = self._servers.get(needs)
            if server is None or not server.alive():
                modules = ("numpy", "torch") if needs == "torch" else ("numpy",)
                server = self._servers[needs] = Server(modules)
            return server

    def close(self) -> None:
        """Ends the fork servers and whatever runs under them."""
        with self._lock:
            while self._servers:
                self._servers.popitem()[1].close()

    def judge(
        self,
        exercise: Exercise,
        source: str,
        lang: str = "en",
        *,
        seed: int | None = None,
        hints_seen: int = 0,
    ) -> Verdict:
        """Runs `source` on the cases of `seed` (drawn where None).

        BusyError after a minute without a turn, JudgeError where the judge itself cannot run.
        """
        begun = time.perf_counter()
        if seed is None:
            seed = secrets.randbelow(SEEDS)
        if not self._turns.acquire(timeout=_QUEUE):
            raise BusyError("too many submissions at once", remedy="try again in a moment")
        try:
            server = self.warm(exercise.needs)
            cases = exercise.cases(seed)
            run = _Run(exercise, source, lang, cases)
            # What the code made of its numbers is told in the verdict, not by numpy's warnings.
            with (
                Session(server, exercise.limits, self._without) as session,
                np.errstate(all="ignore"),
            ):
                run.drive(session)
        finally:
            self._turns.release()
        return run.verdict(session, seed, time.perf_counter() - begun, hints_seen)


@cache
def shared() -> Judge:
    """The one judge of this process."""
    made = Judge()
    atexit.register(made.close)
    return made


def judge(exercise: Exercise, source: str, lang: str = "en", seed: int | None = None) -> Verdict:
    """`Judge.judge` by the process's shared judge."""
    return shared().judge(exercise, source, lang, seed=seed)


@dataclass
class _Failure:
    """Why there is no value to compare."""

    status: str
    error: str = ""
    message: str = ""
    lines: tuple[TracebackLine, ...] = ()


class _Run:
    """One submission on its way through the cases."""

    def __init__(self, exercise: Exercise, source: str, lang: str, cases: list[Case]) -> None:
        self._exercise = exercise
        self._source = source
        self._lang = lang
        self._cases = cases
        self._recognise = exercise.recogniser()
        self._results: list[CaseResult] = []
        self._report: dict[str, Any] = {}

    def drive(self, session: Session) -> None:
        """Asks for every case until one ends the process; the rest are not run."""
        seconds = self._exercise.limits.seconds
        deadline = time.monotonic() + _WAITING * seconds + 1
        failure = self._load(session, deadline)
        for case in self._cases:
            if failure is not None:
                done = bool(self._results)
                self._add(case, _Failure("not run") if done else failure, 0.0)
                continue
            begun = time.perf_counter()
            value, failed, over = self._call(session, case, deadline)
            taken = time.perf_counter() - begun
            if failed is not None:
                self._add(case, failed, taken)
            else:
                self._compare(case, value, taken)
            failure = failed if over else None

    def _load(self, session: Session, deadline: float) -> _Failure | None:
        # Written by our own code, before the learner's is there.
        message, _, failure = self._ask(session, b"", deadline)
        if failure is not None or "failed" in message:
            raise JudgeError(
                "the judge's process did not get as far as your code",
                where=str(message.get("failed") or failure),
            )
        self._report = message["guards"]
        if len(self._source.encode(errors="replace")) > SOURCE_LIMIT:
            return _Failure("error", f"more than {SOURCE_LIMIT >> 10} KiB of code")
        first = {
            "needs": self._exercise.needs,
            "source": self._source,
            "harness": self._exercise.harness(),
            "floating_errors": self._exercise.floating_errors,
        }
        message, _, failure = self._ask(session, wire.pack(first), deadline)
        return failure if failure is not None else self._refused(message)

    def _call(
        self, session: Session, case: Case, deadline: float
    ) -> tuple[Any, _Failure | None, bool]:
        """The answer, or why there is none, and whether that ends the run."""
        function = case.function or self._exercise.functions[0]
        args = [_sendable(arg, self._exercise.needs == "torch") for arg in case.args]
        frame = wire.pack({"function": function}, args)
        message, value, failure = self._ask(session, frame, deadline)
        if failure is not None:
            return None, failure, True
        if message.get("status") == "answered" and value is None and case.expected is not None:
            said = messages.RETURNED_NOTHING.in_language(self._lang)
            return None, _Failure("no answer", message=said), False
        return value, self._refused(message), False

    def _ask(
        self, session: Session, frame: bytes, deadline: float
    ) -> tuple[dict[str, Any], Any, _Failure | None]:
        try:
            return *session.ask(frame, deadline), None
        except TimeoutError:
            session.stop()
            return {}, None, self._too_slow()
        except wire.WireError as error:
            session.stop()
            said = messages.GARBLED.in_language(self._lang).format(error)
            return {}, None, _Failure("no answer", message=said)
        except EndedError:
            return {}, None, self._ended(session)

    def _too_slow(self) -> _Failure:
        limit = messages.TIME_LIMIT.in_language(self._lang)
        return _Failure("timeout", message=limit.format(self._exercise.limits.seconds))

    def _ended(self, session: Session) -> _Failure:
        end = session.await_end()
        if end.stopped:
            return _Failure("no answer", message=messages.CLOSED.in_language(self._lang))
        if end.signal == 0:
            said = messages.ENDED.in_language(self._lang).format(end.code)
            return _Failure("no answer", message=said)
        if end.signal == signal.SIGXCPU or end.cpu >= self._exercise.limits.seconds:
            return self._too_slow()
        said = messages.SIGNAL.in_language(self._lang).format(_signal_name(end.signal))
        return _Failure("crashed", message=said)

    def _refused(self, message: dict[str, Any]) -> _Failure | None:
        """The child's own account of what went wrong: texts alone, and cut."""
        status = message.get("status")
        if status in ("answered", "loaded"):
            return None
        error = wire.text(message.get("error"))
        if status == "unusable":
            said = messages.UNUSABLE.in_language(self._lang).format(error)
            return _Failure("wrong structure", message=said)
        if message.get("memory") is True:
            limit = messages.MEMORY_LIMIT.in_language(self._lang)
            said = limit.format(self._exercise.limits.memory_mb)
            return _Failure("memory", error, said, _lines(message))
        return _Failure("error", error, "", _lines(message))

    def _compare(self, case: Case, value: Any, taken: float) -> None:
        compared = compare(case, value)
        named = message = None
        if compared.status != "passed":
            named = mistake(case, value)
            outcome = Outcome(compared.status, plain(value))
            named, message = self._told(case, outcome, named)
        said = message or ""
        self._results.append(
            CaseResult(case.name, compared.status, taken, compared, mistake=named, message=said)
        )

    def _add(self, case: Case, failure: _Failure, taken: float) -> None:
        named, message = None, None
        if failure.status != "not run":
            named, message = self._told(case, Outcome(failure.status, None, failure.error), None)
        self._results.append(
            CaseResult(
                case.name,
                failure.status,
                taken,
                error=failure.error,
                lines=failure.lines,
                mistake=named,
                message=message or failure.message,
            )
        )

    def _told(
        self, case: Case, outcome: Outcome, named: str | None
    ) -> tuple[str | None, str | None]:
        if named is None and self._recognise is not None:
            named = self._recognise(case, outcome)
        if named is None:
            return None, None
        return named, self._exercise.mistakes[named].in_language(self._lang)

    def verdict(self, session: Session, seed: int, seconds: float, hints_seen: int) -> Verdict:
        passed = all(result.passed for result in self._results)
        named = next((r for r in self._results if r.mistake is not None), None)
        hints = self._exercise.hints
        shown = not passed and hints_seen < len(hints)
        output = bytes(session.output).decode("utf-8", errors="replace")
        return Verdict(
            exercise=self._exercise.name,
            passed=passed,
            seed=seed,
            cases=tuple(self._results),
            guards=tuple(_guard(name, self._report, self._lang) for name in messages.GUARDS),
            seconds=seconds,
            cpu_seconds=session.end.cpu,
            peak_mib=session.end.peak_mib,
            output=output,
            output_cut=len(session.output) >= OUTPUT_LIMIT,
            mistake=named.mistake if named is not None else None,
            message=named.message if named is not None else "",
            hint=hints[hints_seen].in_language(self._lang) if shown else "",
            hint_number=hints_seen + 1 if shown else 0,
            hints=len(hints),
        )


def plain(value: Any) -> Any:
    """An answer with numpy arrays as leaves."""
    if isinstance(value, wire.Array):
        return value.numpy()
    if isinstance(value, (tuple, list)):
        return type(value)(plain(v) for v in value)
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    return value


def _sendable(value: Any, torch: bool) -> Any:
    """An argument as the wire takes it."""
    if isinstance(value, Tensor):
        values = np.asarray(value.array)
        name = value.dtype or values.dtype.name
        narrow = wire.bfloat16_bits(values) if name == "bfloat16" else values.astype(name)
        return wire.Array(narrow, name, torch=True, requires_grad=value.requires_grad)
    if isinstance(value, np.ndarray):
        return wire.Array(value, value.dtype.name, torch=torch)
    if isinstance(value, (tuple, list)):
        return type(value)(_sendable(v, torch) for v in value)
    if isinstance(value, dict):
        return {key: _sendable(v, torch) for key, v in value.items()}
    return value


def _lines(message: dict[str, Any]) -> tuple[TracebackLine, ...]:
    """The traceback that the child tells of; what is none, as code may forge it, is dropped."""
    found = []
    given = message.get("lines")
    for line in given[:16] if isinstance(given, list) else ():
        if isinstance(line, list) and len(line) == 3:
            number = line[0] if type(line[0]) is int and 0 <= line[0] < 1 << 31 else 0
            found.append(TracebackLine(number, wire.text(line[1], 100), wire.text(line[2], 200)))
    return tuple(found)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _guard(name: str, report: dict[str, Any], lang: str) -> GuardState:
    label = messages.GUARDS[name].in_language(lang)
    reason = report.get(name, "unknown")
    return GuardState(name, label, reason == "", str(reason)[:200])
