"""The code written in the browser, kept beside the progress: a closed tab loses nothing."""

from __future__ import annotations

from pathlib import Path

from gateup.errors import InputError
from gateup.lab.errors import LabError
from gateup.practice.exercise import Exercise
from gateup.practice.judge import SOURCE_LIMIT
from gateup.practice.progress import default_path
from gateup.practice.workspace import code_path, read


class Drafts:
    """One file an exercise. folder: default beside the progress of `gateup practice`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_path().parent / "lab"

    def path(self, exercise: Exercise) -> Path:
        return code_path(self.folder, exercise)

    def read(self, exercise: Exercise) -> str:
        """The draft, or the starter. Raises InputError for a file that cannot be read."""
        path = self.path(exercise)
        return read(path) if path.exists() else exercise.starter()

    def write(self, exercise: Exercise, source: str) -> None:
        """Keep the code; a starter that was not touched needs no file.

        Raises GateupError where it cannot be written, or is longer than the judge takes.
        """
        if len(source.encode("utf-8", "replace")) > SOURCE_LIMIT:
            raise LabError("exercises", "error.long", most=SOURCE_LIMIT)
        path = self.path(exercise)
        if source == exercise.starter() and not path.exists():
            return
        temporary = path.with_suffix(".new")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary.write_text(source, encoding="utf-8", errors="replace")
            temporary.replace(path)
        except OSError as error:
            raise InputError(
                f"the code cannot be kept: {error.strerror}", where=str(path)
            ) from None

    def forget(self, exercise: Exercise) -> None:
        """Back to the starter."""
        self.path(exercise).unlink(missing_ok=True)
