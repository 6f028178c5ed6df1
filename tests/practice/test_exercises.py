"""Each exercise: the solution passes, the starter fails, each mutant earns its message."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from gateup.practice.exercise import FOLDER, LANGUAGES, Exercise, exercises, mistake_of
from gateup.practice.judge import Judge
from gateup.practice.verdict import Verdict

SEEDS = (1, 2, 3)
MUTANTS = [(e, path) for e in exercises() for path in e.mutants()]


def _id(value: Exercise | Path) -> str:
    return value.stem if isinstance(value, Path) else value.name


def _skip_without_torch(exercise: Exercise) -> None:
    if exercise.needs == "torch" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")


def _why(verdict: Verdict) -> list[object]:
    return [case for case in verdict.cases if not case.passed][:2]


@pytest.mark.parametrize("exercise", exercises(), ids=_id)
def test_the_solution_passes(exercise: Exercise, practice_judge: Judge) -> None:
    _skip_without_torch(exercise)
    for seed in SEEDS:
        verdict = practice_judge.judge(exercise, exercise.solution(), seed=seed)
        assert verdict.passed, _why(verdict)


@pytest.mark.parametrize("exercise", exercises(), ids=_id)
def test_the_starter_does_not(exercise: Exercise, practice_judge: Judge) -> None:
    _skip_without_torch(exercise)
    verdict = practice_judge.judge(exercise, exercise.starter(), "zh", seed=1)
    assert not verdict.passed
    assert verdict.hint == exercise.hints[0].zh


@pytest.mark.parametrize(("exercise", "mutant"), MUTANTS, ids=_id)
def test_a_mutant_earns_its_message(
    exercise: Exercise, mutant: Path, practice_judge: Judge
) -> None:
    _skip_without_torch(exercise)
    wanted = mistake_of(mutant)
    verdict = practice_judge.judge(exercise, mutant.read_text(encoding="utf-8"), seed=1)
    assert not verdict.passed
    assert verdict.mistake == wanted, _why(verdict)
    assert verdict.message == exercise.mistakes[wanted].en
    first = next(case for case in verdict.cases if not case.passed)
    assert first.mistake == wanted, first  # not under a later case only


@pytest.mark.parametrize("exercise", exercises(), ids=_id)
def test_texts_and_code_are_whole(exercise: Exercise) -> None:
    for lang in LANGUAGES:
        assert exercise.problem(lang).startswith("# ")
    for source in (exercise.starter(), exercise.solution()):
        defined = {n.name for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)}
        assert set(exercise.functions) <= defined


def test_numbers_count_from_one() -> None:
    numbers = [int(path.name[:2]) for path in sorted(FOLDER.iterdir()) if path.name[:2].isdigit()]
    assert numbers == list(range(1, len(numbers) + 1))
