"""A text through a real model: which neurons fire, what one does, what changes without it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from gateup.account.report import units
from gateup.errors import GateupError
from gateup.files.checkpoint import DEMO
from gateup.lab import charts
from gateup.lab import data_neurons as data
from gateup.lab.figures import figure_list, table, text
from gateup.lab.formulas import mathml
from gateup.lab.frame import Frame
from gateup.lab.held import HELD, MAX_TOKENS, missing
from gateup.lab.models import NAMED, Models
from gateup.lab.state import Choice, Flag, Number, Pairs, Param, Text

LAST = "last"
MAX_LAYERS = 256
_LATEX = {
    "fires": r"h_j = \mathrm{act}(a_j)\, b_j, \quad a_j = g_j \cdot x, \quad b_j = u_j \cdot x",
    "writes": r"s = U (w \odot d) - \mathrm{mean}_v, \quad d = W_{down}[:, j], \quad"
    r"\Delta \mathrm{logit} \approx \frac{h}{\sqrt{\mathrm{mean}\, x^2 + \epsilon}}\, s",
    "reads": r"a_v = g_j \cdot \left(\frac{E_v}{\sqrt{\mathrm{mean}\, E_v^2 + \epsilon}}"
    r"\odot w_{mlp}\right)",
}


def params(models: Models) -> Sequence[Param]:
    runnable = models.runnable()
    numbers = tuple(map(str, range(max(MAX_LAYERS, MAX_TOKENS))))
    return (
        Choice("model", NAMED if NAMED in runnable else DEMO, free=True),
        Text("text", "The capital of France is"),
        Choice("position", LAST, (LAST, *numbers[:MAX_TOKENS])),
        Choice("layer", LAST, (LAST, *numbers[:MAX_LAYERS])),
        Text("neuron", "", room=9),
        Number("top", 8, 4, 24),
        Pairs("off", data.MAX_OFF),
        Flag("how", False),
    )


def build(frame: Frame) -> None:
    runnable = frame.models.runnable()
    lines = _lacking(frame, runnable)
    if lines:
        said = "".join(f"<p>{text(line)}</p>" for line in lines)
        head = text(frame.t("missing"))
        ui.html(f'<div class="verdict no"><strong>{head}</strong>{said}</div>', sanitize=False)
        return
    view = _View(frame, runnable)
    frame.on_change(view.update)


def _lacking(frame: Frame, runnable: Mapping[str, str]) -> list[str]:
    """What is to be installed before the page can run a model."""
    lines = [frame.t("missing.package", name=name) for name in missing()]
    return lines if runnable else [*lines, frame.t("missing.model")]


class _View:
    def __init__(self, frame: Frame, runnable: dict[str, str]) -> None:
        self.frame = frame
        self.turn = 0  # of runs: an answer that is no longer asked for is not shown
        t = frame.t
        asked = frame.state["model"]
        if asked not in runnable:
            shown = next(iter(runnable))
            frame.state.put("model", shown)
            ui.notify(t("no_weights", name=asked, shown=runnable[shown]), type="warning")
        with frame.controls():
            frame.choice("model", runnable)
            frame.field("text").classes("wider").props(
                f'hint="{t("text_hint", characters=data.MAX_CHARACTERS, tokens=MAX_TOKENS)}"'
            )
            self.position = frame.choice("position", self._options("position", ()))
            self.layer = frame.choice("layer", self._options("layer", ()))
            frame.field("neuron").props(f'hint="{t("neuron_hint")}"')
            frame.slider("top", lambda v: f"{v:g}")
            self._off_field()
            frame.switch("how")
        self.waiting = ui.html(f'<p class="note">{text(t("loading"))}</p>', sanitize=False)
        self.body = ui.element("div").mark("neurons")
        self.body.set_visibility(False)
        with self.body:
            self._draw()

    def _off_field(self) -> None:
        frame = self.frame
        hint = frame.t("off_hint", most=data.MAX_OFF)
        param = frame.state.param("off")
        control = ui.input(frame.t("off"), value=param.write(frame.state["off"]))
        control.props(f'dense outlined hint="{hint}"')

        def taken() -> None:
            frame.put("off", param.read(control.value or ""))
            control.value = param.write(frame.state["off"])

        control.on("change", taken)
        frame.bind("off", control, param.write)
        self.off = control

    def _draw(self) -> None:
        t = self.frame.t
        self.head = ui.html("", sanitize=False)
        with ui.element("div").classes("grid wide-cells"):
            with ui.element("figure"):
                ui.html(f"<h3>{text(t('by_position'))}</h3>", sanitize=False)
                self.peaks = ui.plotly({}).classes("plot tall").mark("peaks")
                self.peaks.on("plotly_click", self._clicked_token)
            with ui.element("figure"):
                self.ranks_title = ui.html("", sanitize=False)
                self.ranks = ui.plotly({}).classes("plot tall").mark("ranks")
                self.ranks.on("plotly_click", self._clicked_neuron)
        self.firing = ui.html("", sanitize=False).mark("firing")
        self.buttons = ui.element("div").classes("buttons")
        self.one = ui.html("", sanitize=False).mark("one")
        self.changes = ui.html("", sanitize=False)
        self.bars = ui.plotly({}).classes("plot tall").mark("bars")
        self.change = ui.html("", sanitize=False).mark("change")

    # ---- clicks ---------------------------------------------------------------------------------

    def _clicked_token(self, event: Any) -> None:
        cell = _cell(event)
        if cell is not None and cell[0] < len(self.view.tokens):
            self._go(layer=cell[1], position=cell[0])

    def _clicked_neuron(self, event: Any) -> None:
        cell = _cell(event)
        if cell is not None and cell[1] < len(self.view.ranked):
            row = self.view.ranked[cell[1]]
            if cell[0] < len(row):
                self._go(layer=cell[1], neuron=row[cell[0]][0])

    def _go(self, layer: int, position: int | None = None, neuron: int | None = None) -> None:
        """To another cell: several parameters at once, and one update."""
        values = {"layer": str(layer), "neuron": "" if neuron is None else str(neuron)}
        if position is not None:
            values["position"] = str(position)
        self.frame.put_all(values)
        for name in values:
            self.frame.show(name)

    # ---- updates --------------------------------------------------------------------------------

    async def update(self, changed: set[str]) -> None:
        self.body.classes("stale")
        await self.frame.slowly(self._run)

    def _ask(self) -> data.Ask:
        state = self.frame.state

        def number(name: str) -> int | None:
            return int(state[name]) if state[name].isascii() and state[name].isdecimal() else None

        return data.Ask(
            state["text"],
            number("layer"),
            number("position"),
            number("neuron"),
            state["off"],
            state["top"],
        )

    async def _run(self) -> None:
        checkpoint = self.frame.models.open(self.frame.state["model"])
        self.turn = turn = self.turn + 1
        try:
            asked = HELD.worker.submit(data.look, checkpoint, self._ask())
            view = await asyncio.wrap_future(asked)
            if turn == self.turn:
                self.show(view)
                self.frame.show_error(None)
        except GateupError:
            self.body.set_visibility(False)
            raise
        finally:
            self.waiting.set_visibility(False)
            self.body.classes(remove="stale")

    def show(self, view: data.View) -> None:
        """Fill the page with what was found."""
        self.view = view
        state = self.frame.state
        layers = [str(i) for i in range(view.layers)]
        self.layer.set_options(self._options("layer", layers), value=self._kept("layer", layers))
        tokens = [f"{i}: {token}" for i, token in enumerate(view.tokens)]
        self.position.set_options(
            self._options("position", tokens), value=self._kept("position", tokens)
        )
        scale = self._scale()
        self._heads(scale)
        self.peaks.update_figure(self._peaks(scale))
        self.ranks.update_figure(self._ranks(scale))
        self.firing.set_content(self._firing())
        self._switches()
        self.one.set_content(self._figures() + self._writes() + self._reads())
        self._changes()
        self.off.value = state.param("off").write(state["off"])
        self.body.set_visibility(True)

    def _options(self, name: str, labels: Sequence[str]) -> dict[str, str]:
        """The values that this model and text have; before these are known, what is asked for."""
        out = {str(i): label for i, label in enumerate(labels)}
        asked = self.frame.state[name]
        if not labels and asked != LAST:
            out[asked] = asked
        return out | {LAST: self.frame.t(f"{name}.last")}

    def _kept(self, name: str, labels: Sequence[str]) -> str:
        """The parameter's value; the last where the model or text has no such number."""
        value: str = self.frame.state[name]
        if value != LAST and int(value) >= len(labels):
            self.frame.state.put(name, LAST)
        kept: str = self.frame.state[name]
        return kept

    # ---- which neurons fire ---------------------------------------------------------------------

    def _scale(self) -> tuple[float, float]:
        """The least and the largest |h| that a chart shows."""
        view = self.view
        shown = [v for row in view.peaks for v in row]
        shown += [abs(h) for row in view.ranked for _, h in row]
        above = [v for v in shown if v > 0] or [1.0]
        return min(above), max(*above, min(above) * 1.001)

    def _heads(self, scale: tuple[float, float]) -> None:
        t, view = self.frame.t, self.view
        low, high = (units.rounded(v) for v in scale)
        note = text(t("fires_note", act=view.act, low=low, high=high))
        self.head.set_content(
            f'<h2>{text(t("fires"))}</h2><p class="note">{note}</p>'
            f'<p class="note">{text(t("first_token"))}</p>{self._formula("fires")}'
        )
        title = t("by_rank", token=self._token(), n=len(view.ranked[0]))
        self.ranks_title.set_content(f"<h3>{text(title)}</h3>")

    def _token(self) -> str:
        assert self.view.asked.position is not None
        return self.view.tokens[self.view.asked.position]

    def _formula(self, name: str) -> str:
        opened = " open" if self.frame.state["how"] else ""
        return (
            f'<div class="figure prose"><details{opened}><summary><dt>'
            f"{text(self.frame.t('how_computed'))}</dt></summary>"
            f"<p>{mathml(_LATEX[name], block=True)}</p></details></div>"
        )

    def _layer_axis(self) -> dict[str, Any]:
        return {"title": {"text": self.frame.t("layer_axis")}, "autorange": "reversed"}

    def _peaks(self, scale: tuple[float, float]) -> charts.Figure:
        t, view = self.frame.t, self.view
        texts = [
            [
                t(
                    "hover_peak",
                    layer=i,
                    position=p,
                    token=charts.harmless(view.tokens[p]),
                    h=f"{h:.4g}",
                )
                for p, h in enumerate(row)
            ]
            for i, row in enumerate(view.peaks)
        ]
        count = len(view.tokens)
        step = math.ceil(count / 16)  # as many names as there is room for
        named = list(range(0, count, step))
        names = [charts.harmless(view.tokens[i], 12) for i in named]
        x = {"title": {"text": t("token_axis")}, "tickvals": named, "ticktext": names}
        assert view.asked.layer is not None
        assert view.asked.position is not None
        chosen = (view.asked.position, view.asked.layer)
        return charts.heat(view.peaks, texts, x=x, y=self._layer_axis(), scale=scale, chosen=chosen)

    def _ranks(self, scale: tuple[float, float]) -> charts.Figure:
        t, view = self.frame.t, self.view
        values = [[abs(h) for _, h in row] for row in view.ranked]
        texts = [
            [t("hover_rank", layer=i, neuron=j, h=f"{h:.4g}") for j, h in row]
            for i, row in enumerate(view.ranked)
        ]
        count = len(view.ranked[0])
        x = {
            "title": {"text": t("rank_axis")},
            "tickvals": list(range(count)),
            "ticktext": [str(i + 1) for i in range(count)],
        }
        layer = view.asked.layer
        assert layer is not None
        row = [j for j, _ in view.ranked[layer]]
        at = row.index(view.asked.neuron) if view.asked.neuron in row else None
        chosen = None if at is None else (at, layer)
        return charts.heat(values, texts, x=x, y=self._layer_axis(), scale=scale, chosen=chosen)

    def _firing(self) -> str:
        t, view = self.frame.t, self.view
        keys = ("neuron", "a", "act", "b", "h", "adds", "pushes")
        off = {j for layer, j in view.asked.off if layer == view.asked.layer}
        rows = [
            [
                str(f.neuron),
                *(f"{v:.4g}" for v in (f.a, f.act, f.b, f.h, f.adds)),
                " · ".join(f.pushes),
            ]
            for f in view.firing
        ]
        css = [
            "bad" if f.neuron in off else "hot" if f.neuron == view.asked.neuron else ""
            for f in view.firing
        ]
        head = t(
            "strongest",
            layer=view.asked.layer,
            token=self._token(),
            n=len(rows),
            width=f"{view.width:,}",
        )
        return f"<h2>{text(head)}</h2>" + table([t(f"col.{k}") for k in keys], rows, css)

    # ---- one neuron -----------------------------------------------------------------------------

    def _switches(self) -> None:
        """Buttons that switch neurons off and on."""
        frame, asked = self.frame, self.view.asked
        t = frame.t
        assert asked.layer is not None
        assert asked.neuron is not None
        layer, neuron = asked.layer, asked.neuron
        here = (layer, neuron)
        strongest = tuple((layer, f.neuron) for f in self.view.firing)
        off: set[data.Neuron] = set(frame.state["off"])

        def put(chosen: set[data.Neuron]) -> None:
            frame.put("off", tuple(sorted(chosen)))

        self.buttons.clear()
        with self.buttons:
            name = t(f"button.{'on' if here in off else 'off'}", layer=layer, neuron=neuron)
            ui.button(name, on_click=lambda: put(off ^ {here})).props("no-caps").mark("toggle")
            name = t("button.layer", n=len(strongest), layer=layer)
            ui.button(name, on_click=lambda: put(off | set(strongest))).props("no-caps outline")
            if off:
                ui.button(t("button.clear"), on_click=lambda: put(set())).props("no-caps flat")

    def _figures(self) -> str:
        t, view = self.frame.t, self.view
        head = t("one", neuron=view.asked.neuron, layer=view.asked.layer, token=self._token())
        named = [(t(f"fig.{k}"), f) for k, f in view.figures.items()]
        words = {**self.frame.around, "estimate": t("estimate")}
        return f"<h2>{text(head)}</h2>" + figure_list(named, words, how=self.frame.state["how"])

    def _writes(self) -> str:
        t, written = self.frame.t, self.view.written
        notes = [t("writes_note"), t("writes_exact")]
        notes += [t(f"writes_{k}") for k in self.view.besides]
        said = "".join(f'<p class="note">{text(n)}</p>' for n in notes)
        heads = [t("token"), t("score"), t("here")]
        cells = "".join(
            f"<div><h3>{text(t(key))}</h3>"
            + table(heads, [[s.token, f"{s.score:+.3f}", f"{s.here:+.3f}"] for s in scored])
            + "</div>"
            for key, scored in (
                ("promoted", written.promoted),
                ("suppressed", written.suppressed),
            )
        )
        return (
            f"<h2>{text(t('writes'))}</h2>{said}{self._formula('writes')}"
            f'<div class="grid">{cells}</div>'
        )

    def _reads(self) -> str:
        t, written = self.frame.t, self.view.written
        cells = "".join(
            f"<div><h3>{text(t(key))}</h3>"
            + table([t("token"), name], [[s.token, f"{s.score:+.3f}"] for s in scored])
            + "</div>"
            for key, name, scored in (
                ("gate_most", "a", written.gate),
                ("gate_least", "a", written.gate_least),
                ("up_most", "b", written.up),
                ("up_least", "b", written.up_least),
            )
        )
        return (
            f'<h2>{text(t("reads"))}</h2><p class="note">{text(t("reads_note"))}</p>'
            f'{self._formula("reads")}<div class="grid surfaces">{cells}</div>'
        )

    # ---- switched off ---------------------------------------------------------------------------

    def _changes(self) -> None:
        t, view = self.frame.t, self.view
        names = [t("before"), t("after", n=len(view.asked.off))]
        notes = [t("changes_note", token=self._token())]
        if view.absent:
            notes.append(t("absent", off=self.frame.state.param("off").write(view.absent)))
        if not view.asked.off:
            notes.append(t("changes_none"))
        said = "".join(f'<p class="note">{text(n)}</p>' for n in notes)
        keys = "".join(
            f'<span><i class="key" style="background:{charts.colour(i)}"></i>{text(n)}</span>'
            for i, n in ((2, names[0]), (0, names[1]))
        )
        self.changes.set_content(
            f'<h2>{text(t("changes"))}</h2>{said}<div class="keys">{keys}</div>'
        )
        labels = [charts.harmless(bar.token, 16) for bar in view.bars]
        series = [
            (names[0], 2, [bar.before for bar in view.bars]),
            (names[1], 0, [bar.after for bar in view.bars]),
        ]
        self.bars.update_figure(charts.paired_bars(labels, series, t("probability")))
        named = [(t(f"fig.{k}"), f) for k, f in view.change.items()]
        words = {**self.frame.around, "estimate": t("estimate")}
        self.change.set_content(figure_list(named, words, how=self.frame.state["how"]))


def _cell(event: Any) -> tuple[int, int] | None:
    """(column, row) of a click in a chart; None for what a browser of ours never sends."""
    try:
        point = event.args["points"][0]
        column, row = point["x"], point["y"]
    except (KeyError, IndexError, TypeError):
        return None
    if isinstance(column, int) and isinstance(row, int) and column >= 0 and row >= 0:
        return column, row
    return None
