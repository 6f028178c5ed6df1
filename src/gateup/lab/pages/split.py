"""Tensor and expert parallel: who holds what, and where the one all-reduce is."""

from __future__ import annotations

from collections.abc import Sequence

from nicegui import ui

from gateup.account.report import units
from gateup.account.workload import Parallel
from gateup.lab import data_split as data
from gateup.lab.drawings import split_lanes, split_matrices
from gateup.lab.figures import figure_list, table, text
from gateup.lab.frame import POWERS, Frame, model_param
from gateup.lab.models import Models
from gateup.lab.state import Choice, Flag, Number, Param
from gateup.model.spec import ModelSpec, MoESpec

_FORMATS = ("bf16", "q8_0", "q4_k_m", "awq:128", "fp8:128")
_DEGREES = tuple(map(str, data.DEGREES))


def params(models: Models) -> Sequence[Param]:
    return (
        model_param(models),
        Choice("kind", "0", tuple(map(str, range(64)))),
        Choice("tp", "4", _DEGREES),
        Choice("ep", "1", _DEGREES),
        Choice("quant", "bf16", _FORMATS),
        Number("tokens", 2048, 1, 1 << 20),
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
            self.kind = frame.choice("kind", self._kinds())
            frame.choice("tp")
            frame.choice("ep")
            frame.choice("quant")
            frame.slider("tokens", units.integer, POWERS)
            frame.switch("how")
        with frame.answer():
            self.body = ui.html("", sanitize=False)

    def _spec(self) -> ModelSpec:
        return self.frame.models.open(self.frame.state["model"]).spec

    def _kinds(self) -> dict[str, str]:
        out = {}
        for i, (layers, layer) in enumerate(data.kinds(self._spec())):
            key, n = "dense", 0
            if isinstance(layer.mlp, MoESpec):
                key, n = "moe", layer.mlp.num_experts
            out[str(i)] = self.frame.t(f"kind.{key}", layers=layers, n=n)
        return out or {"0": "–"}

    def update(self, changed: set[str]) -> None:
        state = self.frame.state
        if "model" in changed:
            options = self._kinds()
            if state["kind"] not in options:
                state.put("kind", "0")
            self.kind.set_options(options, value=state["kind"])
        parallel = Parallel(tp=int(state["tp"]), ep=int(state["ep"]))
        found = data.split(
            self._spec(), int(state["kind"]), state["quant"], parallel, state["tokens"]
        )
        self.body.set_content(self._fault(found) if found.faults else self._drawn(found))

    def _fault(self, found: data.Split) -> str:
        t = self.frame.t
        lines = self.frame.quoted("".join(f"<p>{text(m.text)}</p>" for m in found.faults))
        largest = text(t("largest", tp=found.largest))
        return (
            f'<div class="verdict no"><strong>{text(t("cannot"))}</strong>{lines}'
            f"<p>{largest}</p></div>"
        )

    def _drawn(self, found: data.Split) -> str:
        t = self.frame.t
        names = {k: t(k) for k in ("matrices", "lanes", "all_reduce")}
        alone = f'<p class="note">{text(t("one_rank"))}</p>' if len(found.parts) == 1 else ""
        figures = figure_list(
            [(t(f"fig.{k}"), f) for k, f in found.figures.items()],
            self.frame.around,
            how=self.frame.state["how"],
        )
        return (
            f'<h2>{text(t("lanes"))}</h2><p class="note">{text(t("lanes_note"))}</p>{alone}'
            f'<div class="grid wide-cells"><figure>{split_lanes(found, names)}</figure>'
            f"<figure><h3>{text(t('matrices'))}</h3>{split_matrices(found, names)}"
            f"{self._layout(found)}</figure></div>"
            f"{self._table(found)}<h2>{text(t('figures'))}</h2>{figures}"
        )

    def _layout(self, found: data.Split) -> str:
        t, notes = self.frame.t, []
        held = found.parts[0].down[0]
        if len(found.parts) > 1 and held == (0, found.width - 1):
            notes.append(t("whole"))
        if found.gated and found.layout.form != "split":
            notes.append(t(found.layout.form))
        if found.gated and found.layout.orientation == "in_out":
            notes.append(t("turned"))
        return "".join(f'<p class="note">{text(n)}</p>' for n in notes)

    def _table(self, found: data.Split) -> str:
        t = self.frame.t
        columns = [("gate", "gate"), ("up", "up")] if found.gated else [("up", "first")]
        heads = [t("rank"), *(t(name) for _, name in columns), t("down")]
        if found.experts:
            heads.append(t("experts"))
        heads += [t("heads"), t("kv_heads")]
        rows = []
        for part in found.parts:
            row = [str(part.rank), *(_listed(getattr(part, key)) for key, _ in columns)]
            row.append(_listed(part.down))
            if found.experts:
                row.append(_one(part.experts))
            rows.append([*row, _one(part.heads), _one(part.kv_heads)])
        return table(heads, rows)


def _listed(ranges: Sequence[data.Range]) -> str:
    return ", ".join(_one(r) for r in ranges)


def _one(held: data.Range | None) -> str:
    if held is None:
        return "–"
    first, last = held
    return f"{first:,}" if first == last else f"{first:,}–{last:,}"
