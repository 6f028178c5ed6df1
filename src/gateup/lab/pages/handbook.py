"""The handbook: its text at once, its experiments when they have run, and both to take away."""

from __future__ import annotations

from collections.abc import Sequence

from nicegui import run, ui

from gateup.errors import GateupError
from gateup.lab.figures import text
from gateup.lab.formulas import plain_code
from gateup.lab.frame import Frame
from gateup.lab.handbook.notebook import notebook
from gateup.lab.handbook.printable import block_html, output_html, page
from gateup.lab.handbook.runner import outputs
from gateup.lab.handbook.source import Code, Section, chapter
from gateup.lab.models import Models
from gateup.lab.state import Param


def params(models: Models) -> Sequence[Param]:
    return ()


def build(frame: Frame) -> None:
    _Chapter(frame)


class _Chapter:
    """One view of the chapter; `results` are the places where experiments' outputs appear."""

    def __init__(self, frame: Frame) -> None:
        self.frame, self.results = frame, dict[str, ui.html]()
        sections = chapter(frame.language)
        links = "".join(f'<li><a href="#{s.id}">{text(s.title)}</a></li>' for s in sections)
        with ui.element("div").classes("buttons"):
            ui.button(frame.t("notebook"), on_click=self._notebook)
            self.print = ui.button(frame.t("printable"), on_click=self._printable).props("flat")
        ui.html(f"<h2>{text(frame.t('contents'))}</h2><ol>{links}</ol>", sanitize=False)
        for section in sections:
            self._section(section)
        ui.timer(0, self._run, once=True)

    def _section(self, section: Section) -> None:
        ui.html(f'<h2 id="{section.id}">{text(section.title)}</h2>', sanitize=False)
        waiting = f'<p class="note">{text(self.frame.t("running"))}</p>'
        for block in section.blocks:
            if isinstance(block, Code):
                ui.html(f'<div class="prose">{plain_code(block.source)}</div>', sanitize=False)
                place = ui.html(waiting, sanitize=False).classes("prose").mark("output")
                self.results[block.name] = place
            else:
                html = block_html(block, {}, self.frame.language)
                ui.html(f'<div class="prose">{html}</div>', sanitize=False)

    async def _run(self) -> None:
        """The experiments, in a process that a thread waits for; once for the server's life."""
        try:
            found = await run.io_bound(outputs)
        except GateupError as error:
            found = {}
            self.frame.show_error(error)
        for name, place in self.results.items():
            place.set_content(output_html((found or {}).get(name)))

    def _notebook(self) -> None:
        language = self.frame.language
        ui.download.content(notebook(language), f"gateup-handbook.{language}.ipynb")

    async def _printable(self) -> None:
        language = self.frame.language
        self.print.disable()
        try:
            html = await run.io_bound(page, language)
            if html is not None:
                ui.download.content(html, f"gateup-handbook.{language}.html")
        except GateupError as error:
            self.frame.show_error(error)
        finally:
            self.print.enable()
