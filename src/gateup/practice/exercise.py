"""The format of an exercise: one folder, loaded and validated here.

    NN_name/
      exercise.yaml     what it is (keys below)
      problem.en.md     the task; `problem.zh.md` the same in Chinese
      starter.py        what the learner begins with: signatures, docstrings, bodies of `...`
      solution.py       one good answer
      cases.py          trusted, runs in our own process: `cases(seed) -> list[Case]`
      harness.py        optional, runs beside the learner's code: `call(solution, function, *args)`
      mutants/ID.py     wrong answers; the stem (up to "__") is the id of the mistake it shows

exercise.yaml:

    title: {en: …, zh: …}
    level: 1                      # 1 (a formula) to 5 (a kernel)
    needs: numpy                  # or torch: then every array argument arrives as a tensor
    functions: [silu]             # what the learner writes; the first is the one cases call
    hints: [{en: …, zh: …}, …]    # from a nudge to nearly the answer
    mistakes: {ID: {en: …, zh: …}, …}   # what to say when a mistake is recognised
    limits: {seconds: 5, memory_mb: 512}   # optional
    floating_errors: raise        # optional: numpy's overflow, invalid and divide are errors

A mistake is recognised by its outputs: a `Case` may hold, by mistake, the value that the mistake
gives (`mistakes={"relu": …}`), and cases.py may define `recognise(case, outcome) -> ID | None` for
what has no value of its own (overflow, a wrong shape).
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np

from gateup.errors import GateupError, UsageError

FOLDER = Path(__file__).parent / "exercises"
LANGUAGES = ("en", "zh")
LEVELS = range(1, 6)
STATUSES = (
    *("passed", "wrong structure", "wrong shape", "wrong dtype", "nan", "wrong value"),
    *("over budget", "error", "timeout", "memory", "crashed", "no answer", "not run"),
)
SECONDS = 5.0
MEMORY_MB = {"numpy": 512, "torch": 1024}
_NAME = re.compile(r"(\d\d)_([a-z0-9_]+)")
_REQUIRED = {"title", "level", "needs", "functions", "hints", "mistakes"}
_OPTIONAL = {"limits", "floating_errors"}


class ExerciseError(GateupError):
    """An exercise's folder that does not follow the format."""


@dataclass(frozen=True)
class Text:
    """The same words in both languages."""

    en: str
    zh: str

    def in_language(self, lang: str) -> str:
        return self.zh if lang == "zh" else self.en


@dataclass(frozen=True)
class Tensor:
    """An argument that arrives as a torch tensor of this dtype ("" is the array's own).

    "bfloat16" is rounded from the array's values, to nearest even.
    """

    array: Any
    dtype: str = ""
    requires_grad: bool = False


@dataclass(frozen=True)
class Expected:
    """A value (array or number), the dtype the answer must have, and how far it may be off.

    Element by element, |got - value| ≤ 4 · terms · eps(dtype) · magnitude. `terms` is how many
    roundings the longest chain of the computation has (the length of a sum, about 4 for an
    element-wise formula), `magnitude` what they are relative to: Σ|a||b| for Σab, by default
    |value|. Integers, booleans and strings are compared exactly.

    dtype "" is that of the case's first floating array, or any where there is none.
    """

    value: Any
    dtype: str = ""
    terms: int = 4
    magnitude: Any = None
    self_reported: bool = False


@dataclass(frozen=True)
class AtMost:
    """A number that the answer may not exceed, as counted beside the learner's own code."""

    limit: float
    self_reported: bool = True


@dataclass(frozen=True)
class Case:
    """One call: the function gets `args`, the answer is compared with `expected`.

    `args` are arrays, tensors, numbers, strings, None, and tuples, lists and dicts of them.
    `expected` is such a value, or a tuple, list or dict of values, with `Expected` and `AtMost`
    as leaves where the default rule does not fit; plain values are `Expected(value)`.
    `mistakes` maps ids to what the mistake would answer, in the same structure, judged by the same
    tolerance. `function` is the one called, by default the exercise's first.
    """

    name: str
    args: tuple[Any, ...]
    expected: Any
    mistakes: Mapping[str, Any] = field(default_factory=dict)
    function: str = ""


@dataclass(frozen=True)
class Outcome:
    """What `recognise` sees of a failed case.

    `status` is one of STATUSES; `value` what was returned (arrays as numpy; None where nothing
    was), `error` the exception's class name and text.
    """

    status: str
    value: Any = None
    error: str = ""


@dataclass(frozen=True)
class Limits:
    """Seconds for all cases, of CPU and of waiting; MiB beyond what Python and libraries hold."""

    seconds: float
    memory_mb: int


@dataclass(frozen=True)
class Exercise:
    """An exercise's description; its texts and cases are read when asked for."""

    number: int
    name: str
    folder: Path
    title: Text
    level: int
    needs: Literal["numpy", "torch"]
    functions: tuple[str, ...]
    hints: tuple[Text, ...]
    mistakes: Mapping[str, Text]
    limits: Limits
    floating_errors: bool

    def problem(self, lang: str) -> str:
        """The task, in Markdown."""
        return self._read(f"problem.{lang if lang in LANGUAGES else 'en'}.md")

    def starter(self) -> str:
        return self._read("starter.py")

    def solution(self) -> str:
        return self._read("solution.py")

    def harness(self) -> str:
        """Source that runs beside the learner's code, or nothing."""
        return self._read("harness.py") if (self.folder / "harness.py").exists() else ""

    def mutants(self) -> tuple[Path, ...]:
        return tuple(sorted((self.folder / "mutants").glob("*.py")))

    def cases(self, seed: int) -> list[Case]:
        """The held-out cases of this seed. ExerciseError where they break the format."""
        made = _module(self.folder / "cases.py").cases(seed)
        if not made or not all(isinstance(case, Case) for case in made):
            raise ExerciseError("cases() must return Cases", where=str(self.folder / "cases.py"))
        for case in made:
            unknown = set(case.mistakes) - set(self.mistakes)
            if unknown or (case.function and case.function not in self.functions):
                raise ExerciseError(
                    f"case {case.name!r} names what exercise.yaml does not have: "
                    f"{', '.join(sorted(unknown)) or case.function}",
                    where=str(self.folder / "cases.py"),
                )
        return list(made)

    def recogniser(self) -> Callable[[Case, Outcome], str | None] | None:
        """cases.py's `recognise`, if it has one."""
        found = getattr(_module(self.folder / "cases.py"), "recognise", None)
        return found if callable(found) else None

    def _read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")


def mistake_of(mutant: Path) -> str:
    """The id of the mistake a mutant's file shows."""
    return mutant.stem.partition("__")[0]


def exercises(folder: Path = FOLDER) -> tuple[Exercise, ...]:
    """All exercises, by number. ExerciseError where one breaks the format."""
    return tuple(load(path) for path in _folders(folder))


def _folders(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    return [path for path in found if (path / "exercise.yaml").is_file()]


def find(wanted: str, folder: Path = FOLDER) -> Exercise:
    """The exercise of this number ("3", "03") or name. UsageError where there is none."""
    number = int(wanted) if wanted.isascii() and wanted.isdigit() else None
    known = []
    for path in _folders(folder):
        prefix, _, name = path.name.partition("_")
        if number == int(prefix) or wanted in (name, path.name):
            return load(path)
        known.append(f"{int(prefix)} {name}")
    raise UsageError(f"there is no exercise {wanted!r}", expected=", ".join(known))


@cache
def load(folder: Path) -> Exercise:
    """The exercise in this folder. ExerciseError names the file and what is wrong in it."""
    named = _NAME.fullmatch(folder.name)
    described = folder / "exercise.yaml"
    if named is None or not described.is_file():
        raise ExerciseError("no exercise", where=str(folder), expected="NN_name/exercise.yaml")
    import yaml  # type: ignore[import-untyped]  # 30 ms that only exercises need

    fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # eight times, where libyaml is there
    try:
        data = yaml.load(described.read_text(encoding="utf-8"), Loader=fast)
    except yaml.YAMLError as error:
        raise ExerciseError(f"no YAML: {error}", where=str(described)) from None
    keys = set(data) if isinstance(data, dict) else set()
    if not keys >= _REQUIRED or keys - _REQUIRED - _OPTIONAL:
        raise ExerciseError(
            "wrong keys",
            where=str(described),
            expected=", ".join(sorted(_REQUIRED) + sorted(_OPTIONAL)),
        )
    limits = data.get("limits") or {}
    exercise = Exercise(
        number=int(named[1]),
        name=named[2],
        folder=folder,
        title=_text(data["title"], described, "title"),
        level=data["level"],
        needs=data["needs"],
        functions=tuple(data["functions"]),
        hints=tuple(_text(hint, described, "hints") for hint in data["hints"]),
        mistakes={k: _text(v, described, f"mistakes.{k}") for k, v in data["mistakes"].items()},
        limits=Limits(
            float(limits.get("seconds", SECONDS)),
            int(limits.get("memory_mb", MEMORY_MB.get(data["needs"], 0))),
        ),
        floating_errors=data.get("floating_errors") == "raise",
    )
    _validate(exercise, described)
    return exercise


def _validate(exercise: Exercise, described: Path) -> None:
    shown = {mistake_of(path) for path in exercise.mutants()}
    files = ("problem.en.md", "problem.zh.md", "starter.py", "solution.py", "cases.py")
    missing = [name for name in files if not (exercise.folder / name).is_file()]
    rules = (
        (exercise.level in LEVELS, "level is 1 to 5"),
        (exercise.needs in MEMORY_MB, "needs is numpy or torch"),
        (bool(exercise.functions), "functions names at least one"),
        (bool(exercise.hints), "hints has at least one"),
        (bool(shown), "mutants/ has at least one"),
        (shown == set(exercise.mistakes), f"mistakes are those of mutants/: {sorted(shown)}"),
        (not missing, f"the folder has {', '.join(missing)}"),
    )
    for holds, rule in rules:
        if not holds:
            raise ExerciseError("an exercise is incomplete", where=str(described), expected=rule)


def _text(value: object, where: Path, key: str) -> Text:
    if not isinstance(value, dict) or set(value) != set(LANGUAGES) or not all(value.values()):
        raise ExerciseError(
            f"{key} is not in both languages", where=str(where), expected="{en: …, zh: …}"
        )
    return Text(en=str(value["en"]).strip(), zh=str(value["zh"]).strip())


@cache
def _module(path: Path) -> ModuleType:
    """cases.py as a module, under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"gateup_exercise_{path.parent.name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def floating(values: Sequence[Any]) -> str:
    """The dtype of the first floating array among arguments, or ""."""
    for value in values:
        if isinstance(value, Tensor):
            return value.dtype or str(np.asarray(value.array).dtype)
        if isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating):
            return str(value.dtype)
        if isinstance(value, (tuple, list, dict)):
            inner = floating(list(value.values()) if isinstance(value, dict) else value)
            if inner:
                return inner
    return ""
