"""Exercises with their problems, an editor, and the judge's verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from nicegui import run, ui

from gateup.errors import GateupError
from gateup.lab.drafts import Drafts
from gateup.lab.figures import text
from gateup.lab.formulas import markdown, plain_code
from gateup.lab.frame import Frame
from gateup.lab.models import Models
from gateup.lab.state import Choice, Param
from gateup.lab.verdicts import verdict_html
from gateup.practice.exercise import Exercise, exercises
from gateup.practice.judge import shared
from gateup.practice.progress import Progress, Record
from gateup.practice.show import state
from gateup.practice.verdict import Verdict

SAVE_EVERY = 2.0  # seconds between looks at the editor


@cache
def _all() -> tuple[Exercise, ...]:
    return exercises()


def params(models: Models) -> Sequence[Param]:
    return (Choice("n", "", ("", *(e.name for e in _all()))),)


def build(frame: Frame) -> None:
    name = frame.state["n"]
    found = next((e for e in _all() if e.name == name), None)
    if found is None:
        _list(frame)
    else:
        _Workbench(frame, found)


def _list(frame: Frame) -> None:
    records = Progress().records()
    done = sum(1 for e in _all() if records.get(e.name, Record()).passed)
    cards = []
    for e in _all():
        record = records.get(e.name, Record())
        mark = f'<i class="key b-s{4 if record.passed else 0}"></i>' if record.attempts else ""
        words = f"{frame.t('level', n=e.level)} · {frame.t(e.needs)}"
        told = state(record, frame.language)
        href = text(frame.href("/exercises", n=e.name))
        cards.append(
            f'<a href="{href}"><h3>{e.number}. {text(e.title.in_language(frame.language))}</h3>'
            f"<p>{text(words)}</p><p>{mark}{text(told)}</p></a>"
        )
    count = text(frame.t("count", n=done, total=len(_all())))
    ui.html(f'<h2>{count}</h2><div class="grid cards">{"".join(cards)}</div>', sanitize=False).mark(
        "exercises"
    )


class _Workbench:
    """One exercise: the problem beside the editor, the verdict under both."""

    def __init__(self, frame: Frame, exercise: Exercise) -> None:
        self.frame, self.exercise = frame, exercise
        self.progress, self.drafts = Progress(), Drafts()
        t, language = frame.t, frame.language
        self._links()
        title = f"{exercise.number}. {exercise.title.in_language(language)}"
        with ui.element("div").classes("grid wide-cells"):
            with ui.element("div"):
                ui.html(f"<h2>{text(title)}</h2>", sanitize=False)
                problem = markdown(_without_title(exercise.problem(language)))
                ui.html(f'<div class="prose">{problem}</div>', sanitize=False)
                self.hints = ui.html("", sanitize=False)
                self.solution = ui.html("", sanitize=False)
            with ui.element("div"):
                self.saved = self._source()
                self.editor = ui.codemirror(
                    self.saved,
                    language="Python",
                    theme="githubDark" if frame.theme == "dark" else "githubLight",
                ).classes("editor")
                with ui.element("div").classes("buttons"):
                    self.button = ui.button(t("run"), on_click=self._run)
                    ui.button(t("hint"), on_click=self._hint).props("flat")
                    ui.button(t("solution"), on_click=self._solution).props("flat")
                    ui.button(t("reset"), on_click=self._reset).props("flat")
                self.verdict = ui.html("", sanitize=False).mark("verdict")
        kept = t("kept", path=self.drafts.path(exercise))
        ui.html(f'<p class="note">{text(kept)}</p>', sanitize=False)
        self._show_hints(self.progress.of(exercise.name).hints)
        ui.timer(SAVE_EVERY, self._save)
        if frame.theme == "auto":
            ui.timer(0, self._theme, once=True)

    def _links(self) -> None:
        t, place = self.frame.t, _all().index(self.exercise)
        links = [(t("all"), self.frame.href("/exercises"))]
        for label, at in ((t("previous"), place - 1), (t("next"), place + 1)):
            if 0 <= at < len(_all()):
                links.append((label, self.frame.href("/exercises", n=_all()[at].name)))
        ui.html(
            '<p class="links">'
            + " · ".join(f'<a href="{text(href)}">{text(label)}</a>' for label, href in links)
            + "</p>",
            sanitize=False,
        )

    def _source(self) -> str:
        try:
            return self.drafts.read(self.exercise)
        except GateupError as error:
            self.frame.show_error(error)
            return self.exercise.starter()

    async def _theme(self) -> None:
        if await ui.run_javascript("Quasar.Dark.isActive"):
            self.editor.set_theme("githubDark")

    def _save(self) -> None:
        source = self.editor.value or ""
        if source == self.saved:
            return
        self.saved = source
        try:
            self.drafts.write(self.exercise, source)
        except GateupError as error:
            self.frame.show_error(error)

    async def _run(self) -> None:
        """Judge what the editor holds, in a thread: the judge waits for a process."""
        exercise, language = self.exercise, self.frame.language
        self._save()
        self.button.disable()
        self.verdict.set_content(f'<p class="note">{text(self.frame.t("running"))}</p>')
        # Whatever happens to the judge, its faults too, the page does not stay at "Judging".
        shown = f'<div class="verdict no">{text(self.frame.t("judge_failed"))}</div>'
        try:
            verdict = await run.io_bound(self._judge, self.editor.value or "", language)
            if verdict is not None:
                self.progress.tried(exercise.name, verdict.passed)
                shown = verdict_html(verdict, language)
            self.frame.show_error(None)
        except GateupError as error:
            shown = ""
            self.frame.show_error(error)
        finally:
            self.verdict.set_content(shown)
            self.button.enable()

    def _judge(self, source: str, language: str) -> Verdict:
        seen = self.progress.of(self.exercise.name).hints
        return shared().judge(self.exercise, source, language, hints_seen=seen)

    def _hint(self) -> None:
        total = len(self.exercise.hints)
        if self.progress.of(self.exercise.name).hints >= total:
            ui.notify(self.frame.t("no_more_hints"))
            return
        self._show_hints(self.progress.reveal_hint(self.exercise.name, total).hints)

    def _show_hints(self, count: int) -> None:
        hints = self.exercise.hints[:count]
        total, language = len(self.exercise.hints), self.frame.language
        self.hints.set_content(
            "".join(
                f"<h3>{text(self.frame.t('hint_n', n=i, total=total))}</h3>"
                f'<div class="prose">{markdown(hint.in_language(language))}</div>'
                for i, hint in enumerate(hints, 1)
            )
        )

    def _solution(self) -> None:
        self.progress.show_solution(self.exercise.name)
        title = text(self.frame.t("solution"))
        self.solution.set_content(f"<h3>{title}</h3>{plain_code(self.exercise.solution())}")

    def _reset(self) -> None:
        def begin_again() -> None:
            dialog.close()
            self.drafts.forget(self.exercise)
            self.saved = self.exercise.starter()
            self.editor.value = self.saved
            self.verdict.set_content("")

        with ui.dialog() as dialog, ui.card():
            ui.label(self.frame.t("reset_sure"))
            with ui.row():
                ui.button(self.frame.t("yes"), on_click=begin_again)
                ui.button(self.frame.t("no"), on_click=dialog.close).props("flat")
        dialog.open()


def _without_title(problem: str) -> str:
    """The problem's text begins with its title, which the page has already."""
    first, _, rest = problem.partition("\n")
    return rest if first.startswith("# ") else problem
