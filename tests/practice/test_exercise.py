"""A folder that breaks the format is refused, with the file and the rule."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gateup.errors import UsageError
from gateup.practice.exercise import ExerciseError, Text, exercises, find, load


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the first exercise, to be damaged."""
    return Path(shutil.copytree(find("silu").folder, tmp_path / "07_copied"))


def _yaml(old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "exercise.yaml"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    return change


def test_a_folder_is_an_exercise(copy: Path) -> None:
    exercise = load(copy)
    assert (exercise.number, exercise.name, exercise.functions) == (7, "copied", ("silu",))
    assert exercise.title.in_language("zh") == "不会溢出的 SiLU"
    assert exercise.problem("zh").startswith("# 不会溢出")
    assert exercise.harness() == ""
    assert [case.name for case in exercise.cases(1)] == [case.name for case in exercise.cases(2)]
    assert exercises(copy.parent)[0].name == "copied"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_yaml("level: 1", "level: 9"), "level is 1 to 5"),
        (_yaml("needs: numpy", "needs: jax"), "needs is numpy or torch"),
        (_yaml("functions: [silu]", "functions: []"), "functions names at least one"),
        (_yaml("level: 1", "lewel: 1"), "wrong keys"),
        (_yaml("level: 1", "level: ["), "no YAML"),
        (_yaml(", zh: 不会溢出的 SiLU", ""), "title is not in both languages"),
        (_yaml("  relu:", "  rely:"), "mistakes are those of mutants/"),
        (lambda folder: (folder / "problem.zh.md").unlink(), "problem.zh.md"),
        (lambda folder: shutil.rmtree(folder / "mutants"), "mutants/ has at least one"),
        (lambda folder: (folder / "exercise.yaml").unlink(), "no exercise"),
    ],
)
def test_damage_is_named(damage: Callable[[Path], None], message: str, copy: Path) -> None:
    damage(copy)
    with pytest.raises(ExerciseError) as caught:
        load(copy)
    assert message in str(caught.value)
    assert str(copy) in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return []", "must return Cases"),
        ("return [Case('c', (), 1, mistakes={'no': 2})]", "'c' names what .* does not have: no"),
        ("return [Case('c', (), 1, function='gelu')]", "does not have: gelu"),
    ],
)
def test_cases_that_break_the_format(body: str, message: str, copy: Path) -> None:
    text = f"from gateup.practice.exercise import Case\n\ndef cases(seed):\n    {body}\n"
    (copy / "cases.py").write_text(text)
    with pytest.raises(ExerciseError, match=message):
        load(copy).cases(1)


def test_found_by_number_and_name() -> None:
    assert find("1").name == find("01").name == find("silu").name == find("01_silu").name == "silu"
    with pytest.raises(UsageError, match="no exercise 'nothing'"):
        find("nothing")
    assert Text("a", "b").in_language("fr") == "a"
