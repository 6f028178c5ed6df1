"""The code written in the browser is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateup.errors import InputError
from gateup.lab.drafts import Drafts
from gateup.lab.errors import LabError
from gateup.practice.exercise import find


def test_a_draft_is_kept_until_it_is_thrown_away(tmp_path: Path) -> None:
    drafts, exercise = Drafts(tmp_path / "new"), find("silu")
    assert drafts.read(exercise) == exercise.starter()
    drafts.write(exercise, exercise.starter())
    assert not drafts.folder.exists()
    drafts.write(exercise, "x = 'σ'\n")
    assert Drafts(tmp_path / "new").read(exercise) == "x = 'σ'\n"
    assert [p.name for p in drafts.folder.iterdir()] == [drafts.path(exercise).name]
    drafts.forget(exercise)
    drafts.forget(exercise)
    assert drafts.read(exercise) == exercise.starter()


def test_what_cannot_be_kept_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="the code cannot be kept"):
        Drafts(tmp_path / "file").write(find("silu"), "x = 1\n")
    with pytest.raises(LabError, match="too long for a solution"):
        Drafts(tmp_path).write(find("silu"), "x" * (1 << 19))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    drafts, exercise = Drafts(tmp_path), find("silu")
    drafts.path(exercise).write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        drafts.read(exercise)
