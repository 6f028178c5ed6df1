"""Progress survives: written in one step, shared, and a broken file is kept and said."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from gateup.errors import InputError
from gateup.practice.progress import Progress, Record, default_path


def test_records_grow(tmp_path: Path) -> None:
    kept = Progress(tmp_path / "deep" / "practice.json")
    assert kept.of("silu") == Record()
    assert kept.tried("silu", passed=False) == Record(attempts=1)
    first = kept.tried("silu", passed=True).passed
    assert first.endswith("+00:00")
    assert kept.tried("silu", passed=True).passed == first
    assert [kept.reveal_hint("silu", 2).hints for _ in range(3)] == [1, 2, 2]
    assert kept.show_solution("silu").solution_seen
    assert Progress(kept.path).of("silu") == Record(3, first, 2, True)
    assert kept.forget("silu") == Record()
    assert kept.problem == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version": 2, "exercises": {}}',
        '{"version": 1, "exercises": {"silu": {"attempts": "3"}}}',
        '{"version": 1, "exercises": {"silu": 3}}',
        "[" * 100_000,
    ],
)
def test_a_broken_file_is_set_aside(text: str, tmp_path: Path) -> None:
    path = tmp_path / "practice.json"
    path.write_text(text)
    kept = Progress(path)
    assert kept.records() == {}
    assert "begun anew" in kept.problem
    assert path.with_suffix(".broken.json").read_text() == text
    kept.tried("silu", passed=False)
    assert json.loads(path.read_text())["exercises"]["silu"]["attempts"] == 1


def test_writers_do_not_lose_each_other_s_records(tmp_path: Path) -> None:
    def write(name: str) -> None:
        for _ in range(20):
            Progress(tmp_path / "practice.json").tried(name, passed=False)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = Progress(tmp_path / "practice.json").records()
    assert {name: record.attempts for name, record in records.items()} == dict.fromkeys("abcd", 20)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["practice.json", "practice.lock"]


def test_a_place_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="progress cannot be kept"):
        Progress(tmp_path / "file" / "practice.json").tried("silu", passed=True)


def test_the_place_is_the_user_s_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_path() == Path("/data/gateup/practice.json")
