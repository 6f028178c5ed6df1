"""The learner's own files: one Python file and the problem beside it, for every exercise begun."""

from __future__ import annotations

import stat
from pathlib import Path

from gateup.errors import InputError, UsageError
from gateup.practice.exercise import Exercise

FOLDER = Path("gateup-practice")
SIZE_LIMIT = 1 << 20


def code_path(folder: Path, exercise: Exercise) -> Path:
    """Where the learner's code for this exercise lies."""
    return folder / f"{exercise.folder.name}.py"


def start(folder: Path, exercise: Exercise, lang: str, *, force: bool = False) -> Path:
    """Writes the starter and the problem. UsageError where the learner's file is there already.

    With `force` the old file is kept beside the new one, as `….bak`.
    """
    path = code_path(folder, exercise)
    if path.exists() and not force:
        raise UsageError(
            f"{path} is there already",
            remedy="--force begins again and keeps the old file as .bak",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.replace(path.with_suffix(".py.bak"))
        path.with_suffix(".md").write_text(exercise.problem(lang), encoding="utf-8")
        path.write_text(exercise.starter(), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from None
    return path


def read(path: Path) -> str:
    """The learner's code. InputError where there is none, UsageError where it was not begun."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a FIFO would be waited for
            raise InputError(
                "cannot be read: not a file", where=str(path), expected="a Python file"
            )
        if found.st_size > SIZE_LIMIT:
            raise InputError("too large for a solution", where=str(path), expected="under 1 MiB")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(
            f"there is no {path}", remedy="gateup practice start N, or name it with --file"
        ) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise InputError("not UTF-8", where=str(path)) from None
