"""act(a)·b: surfaces side by side, slices, derivatives, a probe."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from math import isnan

from nicegui import ui

from gateup.lab import charts
from gateup.lab.data_gate import GATES, probe, scale, slice_ranges, slices, surface
from gateup.lab.formulas import mathml
from gateup.lab.frame import Frame
from gateup.lab.models import Models
from gateup.lab.state import Choice, Number, Param, Several

QUANTITIES = ("z", "by_a", "by_b")

# Turning one surface turns the others. Each plot is linked once; what the turning itself reports
# back is not answered.
_TOGETHER = """
(() => {
  window.labProbes = {};
  window.labMove = (probes) => {
    Object.assign(labProbes, probes);
    for (const [id, [a, b, z]] of Object.entries(labProbes)) {
      const plot = getElement(id);
      if (!plot || !plot.Plotly || !plot.$el.data) continue;
      plot.Plotly.restyle(plot.$el, {x: [[a]], y: [[b]], z: [[z]]}, [1]);
      delete labProbes[id];
    }
    // What is not drawn yet, is asked again; the last place counts.
    clearTimeout(window.labLater);
    if (Object.keys(labProbes).length) window.labLater = setTimeout(() => labMove({}), 200);
  };
  const plots = () => [...document.querySelectorAll('.plot3d')].filter((p) => p.on);
  const follow = (plot, change) => {
    const camera = change['scene.camera'];
    if (!camera || window.labTurning) return;
    window.labTurning = true;
    Promise.all(plots().filter((p) => p !== plot).map(
      (p) => getElement(p.id.slice(1)).run_plot_method('relayout', {'scene.camera': camera})
    )).finally(() => setTimeout(() => { window.labTurning = false; }, 50));
  };
  setTimeout(() => plots().forEach((plot) => {
    if (plot.dataset.linked) return;
    plot.dataset.linked = '1';
    plot.on('plotly_relayout', (change) => follow(plot, change));
  }), 500);
})();
"""


def params(models: Models) -> Sequence[Param]:
    return (
        Several("show", ("silu", "relu", "bilinear", "ungated"), tuple(GATES)),
        Number("reach", 4.0, 1.0, 10.0, 0.5),
        Number("a", 1.0, -10.0, 10.0, 0.1),
        Number("b", 2.0, -10.0, 10.0, 0.1),
        Choice("along", "a", ("a", "b")),
    )


def build(frame: Frame) -> None:
    with frame.controls():
        frame.several("show").classes("wider")
        frame.slider("reach", lambda v: f"{v:g}")
        frame.slider("a", lambda v: f"{v:.1f}")
        frame.slider("b", lambda v: f"{v:.1f}")
        frame.choice("along")
    view = _View(frame)
    frame.on_change(view.update)


class _View:
    """The page's drawings, each redrawn only for what it depends on."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        ui.html(f"<h2>{escape(frame.t('surfaces'))}</h2>", sanitize=False)
        ui.html(f'<p class="note">{escape(frame.t("surfaces_note"))}</p>', sanitize=False)
        self.grid = ui.element("div").classes("grid surfaces")
        self.plots: dict[str, ui.plotly] = {}
        ui.html(f"<h2>{escape(frame.t('slices'))}</h2>", sanitize=False)
        self.keys = ui.html("", sanitize=False)
        self.lines: dict[str, ui.plotly] = {}
        with ui.element("div").classes("grid"):
            for key in QUANTITIES:
                with ui.element("div"):
                    ui.html(f"<h3>{escape(frame.t(key))}</h3>", sanitize=False)
                    self.lines[key] = ui.plotly(self._slice(key)).classes("plot")
        ui.html(f"<h2>{escape(frame.t('probe'))}</h2>", sanitize=False)
        self.table = ui.html("", sanitize=False)
        ui.html(f'<p class="note">{escape(frame.t("product"))}</p>', sanitize=False)

    def update(self, changed: set[str]) -> None:
        if changed & {"show", "reach"}:
            self._surfaces()
        elif changed & {"a", "b"}:
            self._move()
        for key, plot in self.lines.items():
            plot.update_figure(self._slice(key))
        self.keys.set_content(self._keys())
        self.table.set_content(self._table())

    def _surfaces(self) -> None:
        state = self.frame.state
        self.grid.clear()
        self.plots.clear()
        points = {p.name: p for p in probe(state["show"], state["a"], state["b"])}
        with self.grid:
            for name in state["show"]:
                line, z = surface(name, state["reach"])
                at = (state["a"], state["b"], points[name].z)
                with ui.element("figure"):
                    title = escape(self.frame.t(f"show.{name}"))
                    ui.html(f"<h3>{title}</h3>", sanitize=False)
                    figure = charts.surface(
                        line, z, state["reach"], scale(state["reach"]), self._visible(at)
                    )
                    self.plots[name] = ui.plotly(figure).classes("plot3d").mark(f"surface-{name}")
        ui.run_javascript(_TOGETHER)

    def _visible(self, at: tuple[float, float, float]) -> tuple[float, float, float]:
        """The probe, or nothing where it lies outside the square."""
        reach = self.frame.state["reach"]
        outside = max(abs(at[0]), abs(at[1])) > reach
        return (float("nan"),) * 3 if outside else at

    def _move(self) -> None:
        """The probe alone: three numbers a surface, not the surface again."""
        state, moved = self.frame.state, {}
        for p in probe(state["show"], state["a"], state["b"]):
            at = self._visible((state["a"], state["b"], p.z))
            at = charts.lifted(at, scale(state["reach"]))
            plot = self.plots[p.name]
            plot.figure["data"][1] = charts.dot(at)
            moved[plot.id] = [None if isnan(x) else x for x in at]
        ui.run_javascript(f"labMove({json.dumps(moved)})")

    def _slice(self, key: str) -> charts.Figure:
        state = self.frame.state
        order = list(GATES)
        found = slices(state["show"], state["along"], state["a"], state["b"], state["reach"])
        low, high = slice_ranges(state["reach"])[key]
        slack = 0.04 * (high - low)
        return charts.lines(
            [
                (self.frame.t(f"show.{s.name}"), order.index(s.name), s.x, getattr(s, key))
                for s in found
            ],
            x={"title": {"text": state["along"]}, "range": [-state["reach"], state["reach"]]},
            y={"range": [low - slack, high + slack]},
            at=state[state["along"]],
        )

    def _keys(self) -> str:
        order = list(GATES)
        names = "".join(
            f'<span><i class="key" style="background:{charts.colour(order.index(n))}"></i>'
            f"{escape(self.frame.t(f'show.{n}'))}</span>"
            for n in self.frame.state["show"]
        )
        return f'<div class="keys">{names}</div>'

    def _table(self) -> str:
        state, t = self.frame.state, self.frame.t
        head = "".join(f"<th>{escape(t(k))}</th>" for k in ("function", *QUANTITIES, "formula"))
        rows = "".join(
            f"<tr><td>{escape(t(f'show.{p.name}'))}</td>"
            f"<td>{p.z:.4f}</td><td>{p.by_a:.4f}</td><td>{p.by_b:.4f}</td>"
            f"<td>{mathml(GATES[p.name].latex)}</td></tr>"
            for p in probe(state["show"], state["a"], state["b"])
        )
        return f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'
