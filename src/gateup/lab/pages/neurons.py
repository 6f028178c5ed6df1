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
from gateup.lab import asked as typed
from gateup.lab import charts
from gateup.lab import data_neurons as data
from gateup.lab.asked import LAST
from gateup.lab.figures import figure_list, table, text
from gateup.lab.formulas import mathml
from gateup.lab.frame import Frame
from gateup.lab.held import HELD, MAX_TOKENS, missing
from gateup.lab.models import NAMED, Models
from gateup.lab.state import Choice, Flag, Number, Param, Text

_LATEX = {
    "fires": r"h_j = \mathrm{act}(a_j)\, b_j, \quad a_j = g_j \cdot x, \quad b_j = u_j \cdot x",
    "writes": r"s = U (w \odot d) - \mathrm{mean}_v, \quad d = W_{down}[:, j], \quad"
    r"\Delta \mathrm{logit} \approx \frac{h}{\sqrt{\mathrm{mean}\, x^2 + \epsilon}}\, s",
    "reads": r"a_v = g_j \cdot \left(\frac{E_v}{\sqrt{\mathrm{mean}\, E_v^2 + \epsilon}}"
    r"\odot w_{mlp}\right)",
}


def params(models: Models) -> Sequence[Param]:
    runnable = models.runnable()
    return (
        Choice("model", NAMED if NAMED in runnable else DEMO, free=True),
        Text("text", "The capital of France is"),
        Text("position", LAST, room=20),
        Text("layer", LAST, room=20),
        Text("neuron", "", room=20),
        Number("top", 8, 4, 24),
        Text("off", "", room=2000),  # 64 neurons of at most 20 characters, and some that are none
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
    names = ", ".join(missing())
    lines = [frame.t("missing.package", names=names)] if names else []
    return lines if runnable else [*lines, frame.t("missing.model")]


def without_weights(models: Models, runnable: Mapping[str, str], asked: str) -> str:
    """The name of the model that was asked for and has no weights; "" where it has.

    The lab's own model is asked for by the command line, where the URL names none.
    """
    labels = models.labels()
    if asked not in runnable:
        return labels.get(asked, asked).removeprefix("★ ")
    if NAMED in labels and NAMED not in runnable and asked == DEMO:
        return labels[NAMED].removeprefix("★ ")
    return ""


class _View:
    def __init__(self, frame: Frame, runnable: dict[str, str]) -> None:
        self.frame = frame
        self.turn = 0  # of runs: an answer that is no longer asked for is not shown
        t = frame.t
        lacking = without_weights(frame.models, runnable, frame.state["model"])
        if frame.state["model"] not in runnable:
            frame.state.put("model", next(iter(runnable)))
        with frame.controls():
            frame.choice("model", runnable)
            frame.field("text").classes("wider").props(
                f'hint="{t("text_hint", characters=data.MAX_CHARACTERS, tokens=MAX_TOKENS)}"'
            )
            self.position = self._list("position")
            self.layer = self._list("layer")
            frame.field("neuron").props(f'hint="{t("neuron_hint")}"')
            frame.slider("top", lambda v: f"{v:g}")
            frame.field("off").props(f'hint="{t("off_hint", most=data.MAX_OFF)}"')
            frame.switch("how")
        if lacking:
            demo = frame.state["model"] == DEMO
            line = t("no_weights_demo" if demo else "no_weights", name=lacking)
            said = f'<div class="verdict warn" role="note">{text(line)}</div>'
            ui.html(said, sanitize=False).mark("lacking")
        self.said = ui.html("", sanitize=False).mark("said")
        self.waiting = ui.html(f'<p class="note">{text(t("loading"))}</p>', sanitize=False)
        self.body = ui.element("div").mark("neurons")
        self.body.set_visibility(False)
        with self.body:
            self._draw()

    def _list(self, name: str) -> ui.select:
        """A list whose entries come with the text and the model."""
        control = self.frame.choice(name, self._options(name, ()))
        self.frame.bind(name, control, lambda v: v if v in control.options else None)
        return control

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

    async def _run(self) -> None:
        state = self.frame.state
        checkpoint, values = self.frame.models.open(state["model"]), dict(state.values)
        self.turn = turn = self.turn + 1

        def still() -> bool:
            """Whether this is still asked for; what is asked since has an update of its own."""
            return turn == self.turn and values == state.values

        try:
            asked = HELD.worker.submit(data.look, checkpoint, typed.ask(values))
            view = await asyncio.wrap_future(asked)
            if still():
                self.show(view)
                self.frame.show_error(None)
        except GateupError:
            if still():
                self.body.set_visibility(False)
                self._say([])
                raise
        finally:
            self.waiting.set_visibility(False)
            self.body.classes(remove="stale")

    def _say(self, lines: Sequence[str]) -> None:
        """What was asked for and is not there, above the page."""
        said = "".join(f"<div>{text(line)}</div>" for line in lines)
        self.said.set_content(f'<div class="verdict warn" role="status">{said}</div>' * bool(said))

    def show(self, view: data.View) -> None:
        """Fill the page with what was found for its present state."""
        self.view = view
        values, said = typed.settled(self.frame.state.values, view)
        self.layer.set_options(self._options("layer", [str(i) for i in range(view.layers)]))
        tokens = [f"{i}: {token}" for i, token in enumerate(view.tokens)]
        self.position.set_options(self._options("position", tokens))
        self.frame.correct(values)
        for name in ("layer", "position"):
            self.frame.show(name)
        self._say([self.frame.t(key, **holes) for key, holes in said])
        scale = self._scale()
        self._heads(scale)
        self.peaks.update_figure(self._peaks(scale))
        self.ranks.update_figure(self._ranks(scale))
        self.firing.set_content(self._firing())
        self._switches()
        self.one.set_content(self._figures() + self._writes() + self._reads())
        self._changes()
        self.body.set_visibility(True)

    def _options(self, name: str, labels: Sequence[str]) -> dict[str, str]:
        """The values that this model and text have; before these are known, what is asked for."""
        out = {str(i): label for i, label in enumerate(labels)}
        asked = self.frame.state[name]
        if not labels and asked != LAST:
            out[asked] = asked
        return out | {LAST: self.frame.t(f"{name}.last")}

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
        fires = any(v > 0 for row in view.peaks for v in row)
        note = text(
            t("fires_note", act=view.act)
            + (t("scale_note", low=low, high=high) if fires else t("scale_none"))
        )
        parts = ""
        if data.has_parts(view):
            parts = f'<p class="note">{text(t("parts_note"))}</p>'
        self.head.set_content(
            f'<h2>{text(t("fires"))}</h2><p class="note">{note}</p>'
            f'<p class="note">{text(t("first_token"))}</p>{parts}{self._formula("fires")}'
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
        ticks = charts.whole_ticks(self.view.layers)
        axis = {"title": {"text": self.frame.t("layer_axis")}, "autorange": "reversed"}
        return axis | {"tickvals": ticks, "ticktext": list(map(str, ticks))}

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
                " · ".join(f.pushes) or "–",
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
        off = set(asked.off)

        def put(chosen: set[data.Neuron]) -> None:
            if len(chosen) > data.MAX_OFF:  # none of those that are off is switched on for it
                ui.notify(t("full", n=len(chosen), most=data.MAX_OFF), type="warning")
                return
            frame.put("off", typed.write_off(sorted(chosen)))
            frame.show("off")

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
        words = {**self.frame.around, "estimate": t("estimate"), "exact": t("exact")}
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
        names = [(2, t("before"))]
        if view.asked.off:
            names.append((0, t("after", n=len(view.asked.off))))
        notes = [t("changes_note", token=self._token())]
        if not view.asked.off:
            notes.append(t("changes_none"))
        said = "".join(f'<p class="note">{text(n)}</p>' for n in notes)
        keys = "".join(
            f'<span><i class="key" style="background:{charts.colour(i)}"></i>{text(n)}</span>'
            for i, n in names
        )
        self.changes.set_content(
            f'<h2>{text(t("changes"))}</h2>{said}<div class="keys">{keys}</div>'
        )
        labels = [charts.harmless(bar.token, 16) for bar in view.bars]
        shares = [[bar.before for bar in view.bars], [bar.after for bar in view.bars]]
        series = [(name, i, values) for (i, name), values in zip(names, shares, strict=False)]
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
