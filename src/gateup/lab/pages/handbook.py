"""The handbook, section by section, as `gateup.lab.handbook.chapter(language)` gives it.

A section has a `title` and its `markdown`, LaTeX between dollar signs included.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from nicegui import ui

from gateup.lab.figures import text
from gateup.lab.formulas import markdown
from gateup.lab.frame import Frame
from gateup.lab.models import Models
from gateup.lab.state import Param


def params(models: Models) -> Sequence[Param]:
    return ()


def build(frame: Frame) -> None:
    # By name: the registry shows this page only where the package is there.
    sections = import_module("gateup.lab.handbook").chapter(frame.language)
    links = "".join(
        f'<li><a href="#s{i}">{text(section.title)}</a></li>' for i, section in enumerate(sections)
    )
    ui.html(f"<h2>{text(frame.t('contents'))}</h2><ol>{links}</ol>", sanitize=False)
    for i, section in enumerate(sections):
        ui.html(
            f'<h2 id="s{i}">{text(section.title)}</h2>'
            f'<div class="prose">{markdown(section.markdown)}</div>',
            sanitize=False,
        )
