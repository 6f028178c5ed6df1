"""The Neurons page: an answer is shown only for what is still asked."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nicegui", reason="the lab's packages are not installed")

from gateup.lab.errors import LabError
from gateup.lab.models import Models
from gateup.lab.pages import neurons
from gateup.lab.state import State


class _Nothing:
    """An element that takes every call."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class _Run:
    """The page's run of a text, without a page; `answer` is what the model's thread gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, then: dict[str, str]) -> None:
        models = SimpleNamespace(open=lambda key: key)
        self.state = State.of(neurons.params(Models()), {"text": "one two", "position": "3"})
        self.shown: list[object] = []
        self.view = object.__new__(neurons._View)
        self.view.turn = 0
        self.view.frame = SimpleNamespace(  # type: ignore[assignment]
            state=self.state, models=models, show_error=lambda error: None
        )
        self.view.waiting = self.view.body = self.view.said = _Nothing()  # type: ignore[assignment]
        self.view.show = self.shown.append  # type: ignore[method-assign]
        self.answer: Future[object] = Future()

        def submit(*args: object) -> Future[object]:
            for name, value in then.items():  # typed while the model runs
                self.state.put(name, value)
            return self.answer

        held = SimpleNamespace(worker=SimpleNamespace(submit=submit))
        monkeypatch.setattr(neurons, "HELD", held)

    def go(self) -> None:
        asyncio.run(self.view._run())


def test_the_answer_to_what_is_asked_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    run = _Run(monkeypatch, {})
    run.answer.set_result("view")
    run.go()
    assert run.shown == ["view"]


def test_an_answer_that_is_overtaken_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of two tokens has no token 3, and the one typed since has."""
    run = _Run(monkeypatch, {"text": "one two three four five"})
    run.answer.set_result("view")
    run.go()
    assert run.shown == []
    assert run.state.query() == "?text=one+two+three+four+five&position=3"


def test_an_error_is_of_what_is_asked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = LabError("neurons", "error.empty")
    run = _Run(monkeypatch, {"text": "one"})
    run.answer.set_exception(wrong)
    run.go()
    run = _Run(monkeypatch, {})
    run.answer.set_exception(wrong)
    with pytest.raises(LabError):
        run.go()
