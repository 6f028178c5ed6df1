"""The front page: what there is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from nicegui import ui

from gateup.lab.frame import Frame, model_param
from gateup.lab.models import Models
from gateup.lab.registry import available
from gateup.lab.state import Param
from gateup.lab.words import texts


def params(models: Models) -> Sequence[Param]:
    return (model_param(models),)


def build(frame: Frame) -> None:
    cards = []
    for page in available():
        words = texts(page.name, frame.language)
        cards.append(
            f'<a href="{escape(frame.href(page.path))}"><h3>{escape(words["title"])}</h3>'
            f"<p>{escape(words['about'])}</p></a>"
        )
    ui.html(f'<div class="grid cards">{"".join(cards)}</div>', sanitize=False)
