"""Reading the learner's file: what is refused, and that nothing is waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateup.errors import InputError, UsageError
from gateup.practice.workspace import SIZE_LIMIT, read


def test_the_learner_s_file(tmp_path: Path) -> None:
    path = tmp_path / "e.py"
    path.write_text("x = 1\n", encoding="utf-8")
    assert read(path) == "x = 1\n"
    with pytest.raises(UsageError, match="there is no"):
        read(tmp_path / "none.py")
    path.write_bytes(b"\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        read(path)
    path.write_bytes(b" " * (SIZE_LIMIT + 1))
    with pytest.raises(InputError, match="too large"):
        read(path)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a file"):
        read(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.py")
        with pytest.raises(InputError, match="not a file"):
            read(tmp_path / "pipe.py")
