"""Writing what readers asked for: whole or not at all, and over nothing of theirs."""

from __future__ import annotations

import os
import shlex
import tempfile
from pathlib import Path

from gateup.errors import UsageError


def refuse(path: Path, *, force: bool) -> None:
    """Raise UsageError where `path` cannot be written, or is there and `force` was not given."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder", expected="the name of a file")
    if not path.parent.is_dir():
        raise UsageError(
            f"the folder {path.parent} does not exist",
            remedy=f"create it: mkdir -p {shlex.quote(str(path.parent))}",
        )
    if path.exists() and not force:
        raise UsageError(
            f"{path} is there already, perhaps with notes of yours",
            remedy="another name, or --force to replace it",
        )


def write(path: Path, text: str) -> None:
    """Through a temporary file in the same folder. Raises UsageError where that fails."""
    temporary = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8"))
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # mkstemp's own mode is 0600
        temporary.replace(path)
    except OSError as e:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {e.strerror or e}") from None
