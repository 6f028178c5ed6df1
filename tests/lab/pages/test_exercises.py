"""The editor's page ends every run with a message."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("nicegui")

from gateup.lab.pages import exercises as page
from gateup.lab.words import texts
from gateup.practice.exercise import find


@pytest.mark.parametrize("outcome", [OverflowError("forged"), None])
def test_a_judge_that_fails_does_not_leave_the_page_at_judging(
    monkeypatch: pytest.MonkeyPatch, outcome: Exception | None
) -> None:
    async def fails(*_: Any) -> None:
        if outcome is not None:
            raise outcome

    monkeypatch.setattr("nicegui.run.io_bound", fails)
    bench = object.__new__(page._Workbench)
    words = texts("exercises", "en")
    bench.frame = MagicMock(language="en", t=words.__getitem__)
    bench.exercise = find("silu")
    bench.editor, bench.button, bench.verdict = MagicMock(value=""), MagicMock(), MagicMock()
    bench.saved = ""
    if outcome is None:  # the lab is ending
        asyncio.run(bench._run())
    else:
        with pytest.raises(OverflowError):  # which the terminal shows
            asyncio.run(bench._run())
    last = bench.verdict.set_content.call_args.args[0]
    assert words["judge_failed"] in last
    bench.button.enable.assert_called_once()
