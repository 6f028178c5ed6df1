"""Where a model's parameters, bytes and FLOPs go; dragging its widths."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from nicegui import events, ui

from gateup.account.ledger import LEDGER_PARTS, Totals
from gateup.account.report import units
from gateup.account.report.svg import Piece, stacked_bars
from gateup.checks.finding import Finding
from gateup.errors import GateupError
from gateup.files.checkpoint import Checkpoint
from gateup.lab import data_model as data
from gateup.lab.figures import figure_list, legend, table, text
from gateup.lab.frame import POWERS, Frame, model_param
from gateup.lab.models import MAX_UPLOAD, Models
from gateup.lab.state import Choice, Flag, Number, Param
from gateup.lab.words import texts


def params(models: Models) -> Sequence[Param]:
    return (
        model_param(models),
        Choice("quant", "", data.FORMATS),
        Number("ctx", 4096, 1, 1 << 20),
        Number("hidden", 0, 0, 1 << 17),
        Number("width", 0, 0, 1 << 18),
        Choice("tp", "1", tuple(map(str, data.TP))),
        Flag("how", False),
    )


def build(frame: Frame) -> None:
    view = _View(frame)
    frame.on_change(view.update)


class _View:
    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.names = texts("figures", frame.language)
        with frame.controls():
            self.model = frame.model()
            frame.choice("quant")
            frame.slider("ctx", units.integer, POWERS)
            frame.switch("how")
            ui.upload(
                label=frame.t("upload"),
                auto_upload=True,
                max_file_size=MAX_UPLOAD,
                on_upload=self._upload,
                on_rejected=lambda: ui.notify(frame.t("too_large"), type="warning"),
            ).props('accept=".json,application/json" flat bordered dense').classes("upload")
        with frame.answer():
            _heading(frame.t("by_part"))
            self.bars = ui.html("", sanitize=False)
            self.parts = ui.html("", sanitize=False)
            _heading(frame.t("figures"))
            self.figures = ui.html("", sanitize=False)
        _heading(frame.t("drag"))
        ui.html(f'<p class="note">{text(frame.t("drag_note"))}</p>', sanitize=False)
        with frame.controls():
            self.sliders = {"hidden": _WidthSlider(frame, "hidden")}
            self.sliders["width"] = _WidthSlider(frame, "width")
            frame.choice("tp")
        self.problem = ui.html("", sanitize=False)
        with frame.answer():
            self.changes = ui.html("", sanitize=False)
            self.follows = ui.html("", sanitize=False)

    async def update(self, changed: set[str]) -> None:
        """The figures first, the findings after: a slider is answered before they are there."""
        state = self.frame.state
        checkpoint = self.frame.models.open(state["model"])
        spec = checkpoint.spec
        if "model" in changed:
            self.sliders["hidden"].base(data.hidden_width(spec), forget=changed == {"model"})
            self.sliders["width"].base(data.mlp_width(spec), forget=changed == {"model"})
        now, possible = self._edited(checkpoint)
        if changed - {"tp"}:
            self._draw(checkpoint, now)
            await asyncio.sleep(0)
        if not possible:
            # No comparison, no findings: they would be of other widths than those that are set.
            self.changes.set_content("")
            self.follows.set_content("")
        elif changed - {"ctx", "how"}:
            quant, tp = state["quant"], int(state["tp"])
            self._follow(data.consequences(now, quant, tp), quant, tp)

    def _edited(self, checkpoint: Checkpoint) -> tuple[Checkpoint, bool]:
        """With the widths as dragged; as it is, and False, where there can be no such model, which
        is said.
        """
        state = self.frame.state
        try:
            now = data.edited(checkpoint, state["hidden"], state["width"])
        except GateupError as error:
            note = f'<p class="note">{text(self.frame.t("as_it_is"))}</p>'
            self.problem.set_content(self.frame.error_html(error) + note)
            return checkpoint, False
        self.problem.set_content("")
        return now, True

    def _draw(self, checkpoint: Checkpoint, now: Checkpoint) -> None:
        state = self.frame.state
        view = data.view(now, state["quant"], state["ctx"])
        self.bars.set_content(self._bars(view))
        self.parts.set_content(self._parts(view))
        named = [(self.names[k], f) for k, f in view.figures.items()]
        self.figures.set_content(figure_list(named, self.frame.around, how=state["how"]))
        before = view if now is checkpoint else data.view(checkpoint, state["quant"], state["ctx"])
        self.changes.set_content(self._changes(checkpoint, now, before, view))

    def _bars(self, view: data.ModelView) -> str:
        t = self.frame.t
        rows: list[tuple[str, list[Piece]]] = []
        totals = {key: sum(getattr(r.model, key) for r in view.parts) for key in _TOTALS}
        nbytes = t("bar_bytes", label=view.label, n=units.memory(totals["nbytes"]))
        for key, label in (
            ("params", t("bar_params", n=units.integer(totals["params"]))),
            ("nbytes", nbytes),
        ):
            rows.append(
                (
                    units.printable(label),
                    [
                        Piece(
                            r.part,
                            getattr(r.model, key),
                            self._piece(r.part, _written(r.model, key)),
                        )
                        for r in view.parts
                        if getattr(r.model, key)
                    ],
                )
            )
        flops = units.si(sum(view.decode.values()), "FLOP")
        rows.append(
            (
                t("bar_flops", ctx=units.integer(view.ctx), n=flops),
                [
                    Piece(p, view.decode[p], self._piece(p, units.si(view.decode[p], "FLOP")))
                    for p in LEDGER_PARTS
                    if view.decode.get(p)
                ],
            )
        )
        used = {piece.colour for _, pieces in rows for piece in pieces}
        keys = legend((p, self.names[p]) for p in LEDGER_PARTS if p in used)
        return f"<figure>{stacked_bars(t('by_part'), rows)}{keys}</figure>"

    def _piece(self, part: str, written: str) -> str:
        return self.names[part] + self.frame.t("colon") + written

    def _parts(self, view: data.ModelView) -> str:
        t = self.frame.t
        heads = [t("part"), *(self.names[k] for k in ("params", "bytes", "flops"))]
        out = []
        for title, which in (
            (t("one_layer", layers=view.layer), "layer"),
            (t("whole_model"), "model"),
        ):
            rows = [r for r in view.parts if any(getattr(getattr(r, which), k) for k in _TOTALS)]
            cells = [
                [self.names[r.part], *(_written(getattr(r, which), k) for k in _TOTALS)]
                for r in rows
            ]
            sums = Totals(**{k: sum(getattr(getattr(r, which), k) for r in rows) for k in _TOTALS})
            cells.append([self.names["total"], *(_written(sums, k) for k in _TOTALS)])
            css = ["hot" if r.part == "mlp" else "" for r in rows]
            body = table(heads, cells, [*css, "total"])
            out.append(f"<div><h3>{text(title)}</h3>{body}</div>")
        return f'<div class="grid">{"".join(out)}</div>'

    def _changes(
        self,
        checkpoint: Checkpoint,
        now: Checkpoint,
        before: data.ModelView,
        after: data.ModelView,
    ) -> str:
        t = self.frame.t
        rows = []
        for label, path in (
            ("row.params", "params.total"),
            ("row.mlp", "params.mlp"),
            ("row.bytes", "bytes.total"),
            ("row.flops", "flops.total"),
        ):
            old, new = before.figures[path], after.figures[path]
            change = int(new.value - old.value)
            rows.append(
                [t(label), units.tagged(old), units.tagged(new), f"{change:+,}" if change else "0"]
            )
        out = [table(["", t("before"), t("after"), t("difference")], rows)]
        changes = data.shape_changes(checkpoint.spec, now.spec)
        out.append(f"<h3>{text(t('shapes'))}</h3>")
        if changes:
            shapes = [[c.role, f"{c.count:,}", _shape(c.before), _shape(c.after)] for c in changes]
            out.append(table([t("tensor"), t("count"), t("before"), t("after")], shapes))
            out.append(f'<p class="note">{text(t("shapes_note"))}</p>')
        else:
            out.append(f'<p class="note">{text(t("shapes_none"))}</p>')
        return "".join(out)

    def _follow(self, found: data.Consequences, quant: str, tp: int) -> None:
        t = self.frame.t
        lines = []
        if found.ratio is not None:
            lines.append(t("ratio", ratio=f"{found.ratio:.4g}"))
        for name, (n, power) in found.divides.items():
            lines.append(t("divides", name=name, n=f"{n:,}", power=power))
        degrees = ", ".join(map(str, found.degrees))
        line = t("degrees", degrees=degrees) if degrees else t("degrees_none")
        if found.kv_heads is not None:
            line += t("degrees_kv", n=found.kv_heads)
        lines.append(line)
        items = "".join(f"<li>{text(line)}</li>" for line in lines)
        title = t("findings", quant=quant or t("as_stored"), tp=tp)
        findings = "".join(self._finding(f) for f in found.findings)
        if not findings:
            findings = f'<p class="note">{text(t("no_findings"))}</p>'
        self.follows.set_content(
            f"<h2>{text(t('follows'))}</h2><ul>{items}</ul><h3>{text(title)}</h3>{findings}"
        )

    def _finding(self, finding: Finding) -> str:
        css = {"error": "no", "warning": "warn", "note": "plain"}[finding.severity]
        parts = [finding.cause, finding.remedy]
        rest = "".join(f'<p class="note">{text(p)}</p>' for p in parts if p)
        said = self.frame.quoted(f"<p>{text(finding.title)}</p>{rest}")
        return (
            f'<div class="verdict {css}"><strong>{text(self.names[finding.severity])}</strong> '
            f"<code>{text(finding.rule)}</code>{said}</div>"
        )

    async def _upload(self, event: events.UploadEventArguments) -> None:
        try:
            key = self.frame.models.upload(event.file.name, await event.file.read())
        except GateupError as error:
            self.frame.show_error(error)
            return
        self.model.set_options(self.frame.models.labels(), value=key)
        ui.notify(self.frame.t("uploaded", name=event.file.name), type="positive")


_TOTALS = ("params", "nbytes", "flops")


def _written(totals: Totals, key: str) -> str:
    value = getattr(totals, key)
    if key == "params":
        return units.integer(value)
    return units.memory(value) if key == "nbytes" else units.si(value)


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(f"{n:,}" for n in shape)


def _heading(title: str) -> None:
    ui.html(f"<h2>{text(title)}</h2>", sanitize=False)


class _WidthSlider:
    """A slider whose range is the model's: 0 in the URL stands for the width as it is."""

    def __init__(self, frame: Frame, name: str) -> None:
        self.frame, self.name = frame, name
        self.width: data.Width | None = None
        with ui.element("div").classes("named"):
            self.label = ui.html("", sanitize=False)
            self.slider: Any = ui.slider(min=0, max=1, value=0, on_change=self._moved).props(
                f'aria-label="{frame.t(name)}"'
            )
        frame.bind(name, self.slider, self._place, self._relabel)

    def base(self, width: data.Width | None, *, forget: bool) -> None:
        """Take another model's width; forget: also what was dragged before."""
        self.width = width
        if forget:
            self.frame.state.put(self.name, 0)
        self.slider.set_enabled(width is not None)
        if width is not None:
            # As numbers: the slider compares bounds that are strings letter by letter.
            self.slider.props(f":min={width.low} :max={width.high} :step={width.step}")
            self.slider.value = self._place(self.frame.state[self.name])
        self._relabel()

    def _place(self, value: int) -> int:
        return value or (self.width.value if self.width else 0)

    def _moved(self, event: Any) -> None:
        if self.width is not None and event.value is not None:
            value = int(event.value)
            self.frame.put(self.name, 0 if value == self.width.value else value)

    def _relabel(self) -> None:
        key = f" ({self.width.key})" if self.width else ""
        shown = f"{self._place(self.frame.state[self.name]):,}" if self.width else "–"
        self.label.set_content(
            f"<label>{text(self.frame.t(self.name) + key)}<output>{shown}</output></label>"
        )
