"""What surrounds every page: navigation, language, theme, controls bound to the URL, errors."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log2
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl, urlencode

from nicegui import background_tasks, ui
from nicegui.element import Element

from gateup.errors import GateupError
from gateup.files.checkpoint import DEMO
from gateup.lab.errors import LabError
from gateup.lab.models import Models
from gateup.lab.registry import Page, available
from gateup.lab.state import Choice, Param, State
from gateup.lab.style import STYLE
from gateup.lab.words import NAMES, texts

# Changes of one control within so many seconds are one step "back".
ONE_STEP = 1.5
THEMES = ("auto", "light", "dark")

Update = Callable[[set[str]], Awaitable[None] | None]

_SCRIPT = """
// Links to the other language and the other pages take the parameters along that they keep.
const labLinks = () => document.querySelectorAll('[data-keeps]').forEach((link) => {
  const there = new URL(link.href), here = new URLSearchParams(location.search);
  for (const name of link.dataset.keeps.split(',')) {
    if (here.has(name)) there.searchParams.set(name, here.get(name));
    else there.searchParams.delete(name);
  }
  link.href = there;
});
window.addEventListener('popstate', () => {
  emitEvent('lab_state', location.search);
  labLinks();
});
window.labUrl = (query, push) => {
  const url = location.pathname + query;
  if (url === location.pathname + location.search) return;
  history[push ? 'pushState' : 'replaceState'](null, '', url);
  labLinks();
};
// A figure stays as the reader left it when its value changes: what was drawn anew is opened again.
const labOpened = new Set();
const labName = (details) => details.querySelector('dt')?.textContent;
document.addEventListener('click', (event) => {
  const details = event.target.closest?.('.figure summary')?.parentElement;
  if (details) labOpened[details.open ? 'delete' : 'add'](labName(details));
});
new MutationObserver((changes) => changes.forEach((change) => change.addedNodes.forEach((node) => {
  node.querySelectorAll?.('.figure details').forEach((details) => {
    if (labOpened.has(labName(details))) details.open = true;
  });
}))).observe(document, {childList: true, subtree: true});
// The notice of a server that is gone, in the page's language.
document.addEventListener('DOMContentLoaded', () => {
  document.querySelectorAll('#popup span').forEach((span, i) => {
    span.textContent = labLost[i] ?? '';
  });
});
window.labTheme = () => {
  const url = new URL(location.href);
  url.searchParams.set('theme', Quasar.Dark.isActive ? 'light' : 'dark');
  location.replace(url);
};
"""


@dataclass(frozen=True)
class Way:
    """From a parameter's value to its slider's place, and back. step: of the place; 0: as is."""

    to: Callable[[float], float]
    back: Callable[[float], float]
    step: float = 0.0


DIRECT = Way(lambda v: v, lambda v: v)
# Half a power of two a step: contexts, batches.
POWERS = Way(lambda v: round(2 * log2(v)) / 2, lambda place: round(2**place), 0.5)


@dataclass(frozen=True)
class Request:
    """What a browser asks for: a page, its query, and the language it prefers."""

    page: Page | None
    query: Mapping[str, str]
    language: str


class Frame:
    """One view of one page: its texts, its state, and the controls that change it.

    A page's `build(frame)` makes controls with `frame.slider(...)` and the like, draws itself, and
    registers `frame.on_change(update)`, which is called with the names that changed.
    """

    def __init__(self, request: Request, models: Models, params: Sequence[Param]) -> None:
        asked = request.query.get("lang", "")
        self.language = asked if asked in NAMES else request.language
        self.theme = request.query.get("theme", "auto")
        if self.theme not in THEMES:
            self.theme = "auto"
        self._asked = {k: request.query[k] for k in ("lang", "theme") if k in request.query}
        self.page, self.models = request.page, models
        self.words = texts(request.page.name if request.page else "frame", self.language)
        self.around = texts("frame", self.language)
        self.state = State.of(params, request.query)
        self._controls: dict[str, tuple[Any, Callable[[Any], Any]]] = {}
        self._labels: dict[str, Callable[[], None]] = {}
        self._updates: list[Update] = []
        self._changed: set[str] = set()
        self._running = self._shown = False
        self._last: tuple[float, str] = (0.0, "")
        self._error: ui.html | None = None
        self._answers: list[Element] = []
        self._failed: set[str] = set()

    # ---- texts and links ----------------------------------------------------------------------

    def t(self, key: str, **values: object) -> str:
        """The page's text, with `values` put in."""
        text = self.words.get(key) or self.around[key]
        return text.format(**values) if values else text

    def href(self, path: str, **changes: str) -> str:
        """A link that keeps language, theme and model."""
        query = {**self._asked, **changes}
        if "model" in self.state.values and (
            self.state["model"] != self.state.param("model").default
        ):
            query.setdefault("model", self.state["model"])
        return path + (f"?{urlencode(query, safe=':/,')}" if query else "")

    # ---- the page around ----------------------------------------------------------------------

    def open(self) -> Element:
        """Draw header and title; returns the element that the page goes into."""
        ui.add_css(STYLE)
        ui.add_head_html(
            f"<script>document.documentElement.lang='{self.language}';"
            f"const labLost={json.dumps([self.around['lost'], self.around['lost_note']])};"
            f"{_SCRIPT}</script>"
        )
        ui.dark_mode({"auto": None, "light": False, "dark": True}[self.theme])
        ui.on("lab_state", self._back)
        name = self.t("title") if self.page else self.around["title"]
        ui.page_title(name if self.page is None else f"{name} · gateup")
        main = ui.element("main").classes("lab")
        with main:
            ui.html(self._header(), sanitize=False)
            ui.html(
                f'<h1>{escape(name)}</h1><p class="about">{escape(self.t("about"))}</p>',
                sanitize=False,
            )
            self._error = ui.html("", sanitize=False)
        return main

    def _header(self) -> str:
        links = []
        for page in available():
            here = ' aria-current="page"' if page == self.page else ""
            title = escape(texts(page.name, self.language)["title"])
            href = escape(self.href(page.path))
            links.append(f'<a href="{href}"{here} data-keeps="model">{title}</a>')
        other = "en" if self.language == "zh" else "zh"
        own = self.page.path if self.page else "/"
        here = own + self.state.query({**self._asked, "lang": other})
        names = ",".join(p.name for p in self.state.params)
        theme = escape(self.around["theme"])
        return (
            f'<header class="top"><a class="brand" href="{escape(self.href("/"))}" '
            f'data-keeps="model"><b>gate</b>up</a><nav>{"".join(links)}</nav>'
            f'<div class="tools"><a href="{escape(here)}" data-keeps="{names}" lang="{other}">'
            f"{escape(self.around['language'])}</a>"
            f'<button type="button" onclick="labTheme()" title="{theme}" aria-label="{theme}">◐'
            "</button></div></header>"
        )

    def close(self) -> None:
        """The foot of the page."""
        ui.html(f"<footer>{escape(self.around['legend'])}</footer>", sanitize=False)

    # ---- errors -------------------------------------------------------------------------------

    def show_error(self, error: GateupError | None) -> None:
        """What is wrong with the settings, above the page; None takes it away."""
        if self._error is None:
            return
        self._error.set_content("" if error is None else self.error_html(error))

    def error_html(self, error: GateupError) -> str:
        """What is wrong, where, what was expected and what to do."""
        said = error.said(self.language) if isinstance(error, LabError) else None
        told = said or error
        lines = [told.what]
        for label, value in (
            ("where", error.where),
            ("expected", told.expected),
            ("remedy", told.remedy),
        ):
            if value:
                lines.append(f"{self.around[label]}{self.around['colon']}{value}")
        body = escape("\n".join(lines))
        return f'<div class="error" role="alert">{body if said else self.quoted(body)}</div>'

    def quoted(self, html: str) -> str:
        """Sentences of the library, which speaks English: named so on pages in another language."""
        if self.language == "en" or not html:
            return html
        note = escape(self.around["quoted"])
        return (
            f'<div class="quoted"><span class="note">{note}</span><div lang="en">{html}</div></div>'
        )

    def answer(self) -> Element:
        """A part of the page that shows results: away while the settings have none to show."""
        part = ui.element("div")
        self._answers.append(part)
        return part

    def _refuse(self, error: GateupError | None) -> None:
        """An error instead of the results, which are of other settings; None: the results."""
        self.show_error(error)
        for part in self._answers:
            part.set_visibility(error is None)

    # ---- state --------------------------------------------------------------------------------

    def on_change(self, update: Update) -> None:
        """Call `update` with the names of what changed, never twice at a time."""
        self._updates.append(update)

    def put(self, name: str, value: Any) -> None:
        """Set a parameter: the URL follows, and the page is updated."""
        self.put_all({name: value})

    def put_all(self, values: Mapping[str, Any]) -> None:
        """Set several parameters: one step "back", and one update."""
        changed = {name for name, value in values.items() if self.state.put(name, value)}
        if not changed:
            return
        together = ",".join(sorted(changed))
        now, (before, last) = monotonic(), self._last
        push = together != last or now - before > ONE_STEP
        self._last = (now, together)
        self._url(push)
        for name in changed:
            self._label(name)
        self._schedule(changed)

    def correct(self, values: Mapping[str, Any]) -> None:
        """Set parameters to what the page shows, and the URL too: no step "back", no update."""
        for name, value in values.items():
            # Others keep what is being typed into them.
            if self.state.put(name, value) and name in self._controls:
                self.show(name)
        self._url(False)

    def _url(self, push: bool) -> None:
        query = json.dumps(self.state.query(self._asked))
        ui.run_javascript(f"labUrl({query}, {json.dumps(push)})")

    def _back(self, event: Any) -> None:
        """The browser went back or forward: take the state from its URL."""
        search = event.args if isinstance(event.args, str) else ""
        before = dict(self.state.values)
        # Blank ones too, as in a page that is opened: a text that was emptied is empty.
        self.state.read(dict(parse_qsl(search.lstrip("?"), keep_blank_values=True)))
        changed = {k for k, v in self.state.values.items() if v != before[k]}
        for name in changed & self._controls.keys():
            self.show(name)
        self._last = (0.0, "")
        self._schedule(changed)

    def show(self, name: str) -> None:
        """Let a parameter's control show its value."""
        control, place = self._controls[name]
        control.value = place(self.state[name])
        self._label(name)

    def _schedule(self, names: set[str]) -> None:
        self._changed |= names
        if self._changed and not self._running:
            self._running = True
            client = ui.context.client

            async def run() -> None:
                try:
                    with client:
                        await self._flush()
                finally:
                    self._running = False

            background_tasks.create(run(), name="lab update")

    async def _flush(self) -> None:
        while self._changed:
            changed, self._changed = self._changed, set()
            await self.guarded(changed)

    async def guarded(self, changed: set[str]) -> None:
        """Every update, with a GateupError shown instead of raised.

        What was not drawn for an error is drawn with the next update that has none.
        """
        changed, self._failed = changed | self._failed, changed | self._failed
        try:
            for update in self._updates:
                result = update(changed)
                if inspect.isawaitable(result):
                    await result
            self._failed = set()
            self._refuse(None)
        except GateupError as error:
            self._refuse(error)

    async def first(self) -> None:
        """The updates that fill a new page, before it is sent."""
        await self.guarded({p.name for p in self.state.params})
        self._shown = True

    async def slowly(self, work: Callable[[], Awaitable[None]]) -> None:
        """What takes a while: at once in an open page, after it is there in a new one."""
        if self._shown:
            await work()
            return

        async def then() -> None:
            try:
                await work()
            except GateupError as error:
                self._failed = {p.name for p in self.state.params}
                self._refuse(error)

        ui.timer(0, then, once=True)  # a timer starts when the browser has connected

    # ---- controls -----------------------------------------------------------------------------

    def controls(self) -> Element:
        """The panel that controls go into."""
        return ui.element("div").classes("controls")

    def slider(
        self, name: str, write: Callable[[float], str] | None = None, way: Way = DIRECT
    ) -> ui.slider:
        """A slider for a Number; its label is the text of that name, its value beside."""
        param = self.state.param(name)
        label = escape(self.t(name))
        with ui.element("div").classes("named"):
            shown = ui.html("", sanitize=False)
            control = ui.slider(
                min=way.to(param.low),
                max=way.to(param.high),
                step=way.step or param.step,
                value=way.to(self.state[name]),
                on_change=lambda e: self.put(name, way.back(e.value)),
            ).props(f'aria-label="{label}"')

        def relabel() -> None:
            value = self.state[name]
            text = write(value) if write else param.write(value)
            shown.set_content(f"<label>{label}<output>{escape(text)}</output></label>")

        self._labels[name] = relabel
        self._controls[name] = (control, way.to)
        relabel()
        return control

    def bind(
        self,
        name: str,
        control: Any,
        place: Callable[[Any], Any],
        relabel: Callable[[], None] | None = None,
    ) -> None:
        """A control of the page's own: `place` gives its value for the parameter's."""
        self._controls[name] = (control, place)
        if relabel is not None:
            self._labels[name] = relabel

    def _label(self, name: str) -> None:
        if name in self._labels:
            self._labels[name]()

    def choice(
        self, name: str, options: Mapping[str, str] | None = None, *, search: bool = False
    ) -> ui.select:
        """A list to choose one from. options: value -> label; default: the texts "name.value"."""
        param = self.state.param(name)
        if options is None:
            options = {o: self.words.get(f"{name}.{o}", o) for o in param.options}
        value = self.state[name] if self.state[name] in options else None
        control = ui.select(
            dict(options),
            value=value,
            label=self.t(name),
            with_input=search,
            on_change=lambda e: None if e.value is None else self.put(name, e.value),
        ).props("dense outlined options-dense")
        self._controls[name] = (control, lambda v: v if v in options else None)
        return control

    def several(self, name: str) -> ui.select:
        """A list to choose several from."""
        param = self.state.param(name)
        options = {o: self.words.get(f"{name}.{o}", o) for o in param.options}
        control = ui.select(
            options,
            value=list(self.state[name]),
            label=self.t(name),
            multiple=True,
            on_change=lambda e: self.put(name, tuple(e.value)) if e.value else None,
        ).props("dense outlined options-dense use-chips")
        self._controls[name] = (control, list)
        return control

    def switch(self, name: str) -> ui.switch:
        """On or off."""
        control = ui.switch(
            self.t(name), value=self.state[name], on_change=lambda e: self.put(name, bool(e.value))
        ).props("dense")
        self._controls[name] = (control, bool)
        return control

    def number(self, name: str) -> ui.number:
        """A number to type; taken when the field is left."""
        param = self.state.param(name)
        control = ui.number(
            self.t(name), value=self.state[name], min=param.low, max=param.high, step=param.step
        ).props("dense outlined")
        control.on("change", lambda: self.put(name, control.value))
        self._controls[name] = (control, lambda v: v)
        return control

    def field(self, name: str) -> ui.input:
        """A text to type; taken as it is, spaces and all, when the field is left."""
        control = ui.input(self.t(name), value=self.state[name]).props("dense outlined")
        control.on("change", lambda: self.put(name, control.value or ""))
        self._controls[name] = (control, str)
        return control

    def model(self) -> ui.select:
        """The list of models, searchable."""
        labels = self.models.labels()
        asked = self.state["model"]
        if asked not in labels:
            known = labels[self.models.default]
            # The shell says the same of it: its weights come in a package of their own.
            key = "gone_demo" if asked == DEMO else "gone"
            ui.notify(self.t(key, name=asked, default=known), type="warning", multi_line=True)
            self.state.put("model", self.models.default)
        return self.choice("model", labels, search=True)


def model_param(models: Models) -> Choice:
    """The model's key; free, because uploads make new ones."""
    return Choice("model", models.default, free=True)
