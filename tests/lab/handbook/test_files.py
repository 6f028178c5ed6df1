"""Files are written whole or not at all, and nothing of a reader's is overwritten unasked."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateup.errors import UsageError
from gateup.lab.handbook.files import refuse, write


def test_what_is_there_stays_there(tmp_path: Path) -> None:
    mine = tmp_path / "mine.ipynb"
    mine.write_text("notes")
    with pytest.raises(UsageError, match="is there already, perhaps with notes of yours"):
        refuse(mine, force=False)
    refuse(mine, force=True)
    write(mine, "új")
    assert mine.read_text("utf-8") == "új"
    assert [p.name for p in tmp_path.iterdir()] == ["mine.ipynb"]


def test_places_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        refuse(tmp_path, force=True)
    with pytest.raises(UsageError, match=r"does not exist\n.*mkdir -p"):
        refuse(tmp_path / "none" / "x.html", force=False)
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        write(tmp_path / "none" / "x.html", "")
