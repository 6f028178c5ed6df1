"""Attention against the MLP over context: FLOPs, crossings, memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from typing import Any

from nicegui import ui

from gateup.account.report import units
from gateup.lab import charts
from gateup.lab import data_context as data
from gateup.lab.data_model import ledger_of
from gateup.lab.figures import figure_list, text
from gateup.lab.frame import POWERS, Frame, model_param
from gateup.lab.models import Models
from gateup.lab.state import Choice, Flag, Number, Param
from gateup.lab.style import GREY

GIB = 1 << 30
ROOM = 1.08  # a logarithmic axis goes on so much further: for the marks' labels
# Colours by what is drawn, as in the reports: the MLP has the warm one.
MLP, ATTENTION, CACHE, LAST, ALL, WEIGHTS = 0, 1, 2, 4, 6, 7


def params(models: Models) -> Sequence[Param]:
    return (
        model_param(models),
        Number("ctx", 8192, 64, 1 << 20),
        Number("batch", 1, 1, 1024),
        Choice("kv", "bf16", data.KV),
        Flag("log", True),
        Flag("how", False),
    )


def build(frame: Frame) -> None:
    view = _View(frame)
    frame.on_change(view.update)


class _View:
    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        with frame.controls():
            frame.model()
            frame.slider("ctx", units.integer, POWERS)
            frame.slider("batch", units.integer, POWERS)
            frame.choice("kv")
            frame.switch("log")
            frame.switch("how")
        with frame.answer():
            self.flops, self.flops_keys, self.never = self._chart("flops")
            self.memory, self.memory_keys, _ = self._chart("memory")
            self.at = ui.html("", sanitize=False)

    def _chart(self, name: str) -> tuple[ui.plotly, ui.html, ui.html]:
        t = self.frame.t
        ui.html(
            f'<h2>{text(t(name))}</h2><p class="note">{text(t(name + "_note"))}</p>', sanitize=False
        )
        keys = ui.html("", sanitize=False)
        plot = ui.plotly({"data": [], "layout": {}}).classes("plot tall").mark(name)
        return plot, keys, ui.html("", sanitize=False)

    def update(self, changed: set[str]) -> None:
        state, t = self.frame.state, self.frame.t
        checkpoint = self.frame.models.open(state["model"])
        spec = checkpoint.spec
        over = data.flops_over_context(spec)
        if changed & {"model", "log", "ctx"}:
            self.flops.update_figure(self._flops(over))
            why = over.crossing.why
            self.never.set_content(
                f'<p class="note">{text(t("never", why=why))}</p>' if why else ""
            )
        if changed & {"model", "log", "ctx", "batch", "kv"}:
            weights = ledger_of(checkpoint, "")[0].total.nbytes
            memory = data.memory_over_context(spec, state["batch"], state["kv"])
            self.memory.update_figure(self._memory(memory, weights))
        work = data.work_of(spec, state["ctx"], state["batch"], state["kv"])
        listed = [(self._name(k), f) for k, f in over.figures().items()]
        listed += [
            (t(k.removeprefix("flops.decode.")), f)
            for k, f in data.share_at(spec, state["ctx"]).items()
        ]
        listed += [(self._name(k), f) for k, f in data.memory_at(spec, work).items()]
        mla = any(x.attention and x.attention.mla for x in spec.layers)
        note = f'<p class="note">{text(t("mla"))}</p>' if mla else ""
        title = text(t("at", ctx=units.integer(state["ctx"])))
        rows = figure_list(listed, self.frame.around, how=state["how"])
        self.at.set_content(f"<h2>{title}</h2>{rows}{note}")

    def _name(self, key: str) -> str:
        own = {
            "kv": "kv_line",
            "mlp": "mlp_memory",
            "crossover.token": "token_point",
            "crossover.prefill": "prefill_point",
        }
        return self.frame.t(own.get(key, key))

    def _flops(self, over: data.FlopsOverContext) -> charts.Figure:
        t, x = self.frame.t, over.contexts
        series = [
            (t("mlp_line"), MLP, x, [over.mlp] * len(x)),
            (t("token_line"), ATTENTION, x, over.token),
            (t("mean_line"), CACHE, x, over.mean),
        ]
        figure = charts.lines(
            series,
            x=self._context_axis(x),
            y=self._axis(t("flops_axis")),
            at=self.frame.state["ctx"],
        )
        figure["data"] += self._crossings(over)
        self._decorate(figure)
        self.flops_keys.set_content(_keys(series))
        return figure

    def _crossings(self, over: data.FlopsOverContext) -> list[charts.Figure]:
        """Both conventions' points, each with its context."""
        figures, out = over.figures(), []
        for key in ("token", "prefill"):
            point = getattr(over.crossing, key)
            figure = figures.get(f"crossover.{key}")
            if figure is not None and point is not None:
                label = f"{self.frame.t(key)}<br>{units.integer(figure.value)}"
                place = self._place(key, float(point), over.contexts)
                out.append(charts.mark(float(point), over.mlp, label, place))
        return out

    def _place(self, key: str, point: float, contexts: Sequence[int]) -> str:
        """Where a mark's label has room: towards the middle if the plot's edge is near."""
        first, last = contexts[0], contexts[-1]
        along = point / last
        if self.frame.state["log"]:
            along = log10(point / first) / log10(last / first) / ROOM
        if key == "token":
            return "top left" if along > 0.4 else "top right"
        return "bottom right" if along < 0.8 else "bottom left"

    def _memory(self, memory: data.MemoryOverContext, weights: int) -> charts.Figure:
        t, x = self.frame.t, memory.contexts
        named = (
            ("kv_line", CACHE, memory.series["kv"]),
            ("mlp_memory", MLP, memory.series["mlp"]),
            ("logits_last", LAST, memory.series["logits_last"]),
            ("logits_all", ALL, memory.series["logits_all"]),
            ("weights_line", WEIGHTS, [weights] * len(x)),
        )
        series = [(t(name), colour, x, [v / GIB for v in ys]) for name, colour, ys in named]
        figure = charts.lines(
            series,
            x=self._context_axis(x),
            y=self._axis(t("bytes_axis")),
            at=self.frame.state["ctx"],
        )
        self._decorate(figure)
        self.memory_keys.set_content(_keys(series))
        return figure

    def _axis(self, title: str) -> dict[str, Any]:
        log = self.frame.state["log"]
        axis: dict[str, Any] = {"title": {"text": title}, "type": "log" if log else "linear"}
        return axis | (_POWERS_OF_TEN if log else {"rangemode": "tozero", "exponentformat": "SI"})

    def _context_axis(self, at: Sequence[int]) -> dict[str, Any]:
        log = self.frame.state["log"]
        ends = [log10(at[0]), log10(at[-1] / at[0]) * ROOM + log10(at[0])] if log else [0, at[-1]]
        powers = [1 << p for p in range(6, 25, 2) if at[0] <= 1 << p <= at[-1]]
        axis = {
            "title": {"text": self.frame.t("context_axis")},
            "range": ends,
            "type": "log" if log else "linear",
        }
        return axis | ({"tickvals": powers, "ticktext": [_short(p) for p in powers]} if log else {})

    def _decorate(self, figure: charts.Figure) -> None:
        figure["layout"]["hovermode"] = "x unified"
        figure["layout"]["hoverlabel"] = {"font": {"color": "#1b1d21"}, "bordercolor": GREY}


def _power(exponent: int) -> str:
    """10⁸ in one string: Plotly's own raised exponents run into the 0."""
    if -3 <= exponent <= 4:
        return f"{10.0**exponent:g}"
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


_EXPONENTS = range(-9, 22)
_POWERS_OF_TEN = {
    "tickvals": [10.0**p for p in _EXPONENTS],
    "ticktext": [_power(p) for p in _EXPONENTS],
}


def _short(tokens: int) -> str:
    if tokens >= 1 << 20:
        return f"{tokens >> 20}M"
    return f"{tokens >> 10}k" if tokens >= 1 << 10 else str(tokens)


def _keys(series: Sequence[tuple[str, int, Any, Any]]) -> str:
    keys = "".join(
        f'<span><i class="key" style="background:{charts.colour(colour)}"></i>{text(name)}</span>'
        for name, colour, _, _ in series
    )
    return f'<div class="keys">{keys}</div>'
