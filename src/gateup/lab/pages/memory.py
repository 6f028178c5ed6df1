"""One's workload on one's device: verdict, remedies, phases, live tensors by execution mode."""

from __future__ import annotations

from collections.abc import Sequence

from nicegui import run, ui

from gateup.account.activations import prefill_tokens
from gateup.account.fit import Verdict
from gateup.account.options import PlanOptions
from gateup.account.plan import Plan, plan_opened
from gateup.account.remedies import Remedy
from gateup.account.report import units
from gateup.account.report.svg import Piece, stacked_columns
from gateup.account.report.tables import copyable
from gateup.files.checkpoint import Checkpoint
from gateup.lab import data_memory as data
from gateup.lab.data_model import FORMATS, TP
from gateup.lab.drawings import ROLES, timeline_bars
from gateup.lab.figures import figure_list, legend, text
from gateup.lab.frame import POWERS, Frame, model_param
from gateup.lab.models import Models
from gateup.lab.plan_words import plan_words
from gateup.lab.state import Choice, Flag, Number, Param
from gateup.lab.words import texts
from gateup.model import presets


def params(models: Models) -> Sequence[Param]:
    return (
        model_param(models),
        Choice("quant", "", FORMATS),
        Choice("device", "24GB", free=True),
        Number("ctx", 8192, 1, 1 << 20),
        Number("batch", 1, 1, 1024),
        Choice("engine", "", data.ENGINES),
        Choice("kv", "", data.CACHES),
        Choice("execution", "eager", data.EXECUTIONS),
        Number("tile", 1024, 64, 1 << 16),
        Choice("tp", "1", tuple(map(str, TP))),
        Choice("train", "", data.TRAINING),
        Flag("checkpointing", False),
        Flag("flash", True),
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
            frame.model()
            frame.choice("quant")
            self._device()
            frame.slider("ctx", units.integer, POWERS)
            frame.slider("batch", units.integer, POWERS)
            frame.choice("engine")
            self.kv = frame.choice("kv")
            frame.choice("tp")
            frame.choice("execution")
            self.tile = frame.slider("tile", units.integer, POWERS)
            frame.choice("train")
            self.recompute = frame.switch("checkpointing")
            frame.switch("flash")
            frame.switch("how")
        with frame.answer():
            self.verdict = ui.html("", sanitize=False).mark("verdict")
            self.phases = ui.html("", sanitize=False)
            self.modes = ui.html("", sanitize=False)
            self.items = ui.html("", sanitize=False)

    def _device(self) -> None:
        t, asked = self.frame.t, self.frame.state["device"]
        known = dict.fromkeys((*data.DEVICES, asked))
        self.frame.choice("device", {d: d or t("device.") for d in known}, search=True).props(
            f'new-value-mode="add-unique" hint="{t("device_hint")}"'
        )

    async def update(self, changed: set[str]) -> None:
        """Memory at once; the verdict, which may try hundreds of other runs, in a thread after."""
        state = self.frame.state
        self.kv.set_enabled(not state["train"])
        self.recompute.set_enabled(bool(state["train"]))
        self.tile.set_enabled(state["execution"] == "tiled")
        checkpoint = self.frame.models.open(state["model"])
        options = data.options_of(state.values)
        # A run on several cards is split over them; only the judged plan knows how.
        plan = plan_opened(checkpoint, data.without_device(options))
        self._draw(plan)
        if options.device is None:
            self.verdict.set_content(f'<p class="note">{text(self.frame.t("no_device"))}</p>')
            return
        if changed == {"how"}:
            return
        await self.frame.slowly(lambda: self._judge(state["model"], checkpoint, options))

    async def _judge(self, key: str, checkpoint: Checkpoint, options: PlanOptions) -> None:
        """key: the page's name of the model; a preset's is also the command line's."""
        self.verdict.classes("stale")
        content = ""
        try:
            ref = key if key in presets.PRESETS else None
            judged = await run.io_bound(plan_opened, checkpoint, options, ref)
            if judged is not None and judged.verdict is not None:
                self._draw(judged)
                content = self._verdict(judged, judged.verdict)
        finally:
            self.verdict.set_content(content)
            self.verdict.classes(remove="stale")

    def _draw(self, plan: Plan) -> None:
        self.phases.set_content(self._phases(plan))
        self.modes.set_content(self._modes(plan))
        self.items.set_content(self._items(plan))

    def _verdict(self, plan: Plan, verdict: Verdict) -> str:
        t = self.frame.t
        assert plan.device is not None
        head = t("fits" if verdict.fits else "not", device=plan.device.label)
        peak = t(
            "peak",
            peak=units.tag(units.memory(verdict.peak), plan.memory.kind),
            phase=plan_words(verdict.phase, self.frame.language),
            capacity=units.tagged(plan.figures["device.capacity"]),
        )
        lines = [peak, *self._peak_lines(plan, verdict)]
        body = "".join(f"<p>{text(line)}</p>" for line in lines)
        body += self.frame.quoted("".join(f"<p>{text(note)}</p>" for note in verdict.notes))
        if any(verdict.flags.values()):
            body += f"<p>{text(t('run_with'))}</p>" + self._flags(plan, dict(verdict.flags))
        css = "yes" if verdict.fits else "no"
        out = [f'<div class="verdict {css}"><strong>{text(head)}</strong>{body}</div>']
        if verdict.remedies:
            note = f'<p class="note">{text(t("remedies_note"))}</p>'
            out.append(f"<h2>{text(t('remedies'))}</h2>{note}<ol>")
            for remedy in verdict.remedies:
                need = units.tag(units.memory(remedy.peak), remedy.scenario.memory().kind)
                changes = text("; ".join(remedy.changes))
                command = f"<pre>{text(remedy.command)}</pre>" if remedy.command else ""
                out.append(
                    f'<li><strong lang="en">{changes}</strong>: {text(need)}{self._prices(remedy)}'
                    f"{command}{self._flags(plan, remedy.elsewhere)}</li>"
                )
            out.append("</ol>")
        return "".join(out)

    def _peak_lines(self, plan: Plan, verdict: Verdict) -> list[str]:
        """Where the capacity comes from, what fills the peak, the longest context."""
        t, peak = self.frame.t, plan.memory.peak
        memory, reserve = (units.tagged(plan.figures[f"device.{k}"]) for k in ("memory", "reserve"))
        parts = (
            f"{self.names[group]} {units.tagged(f)} ({units.share(f.value, peak)})"
            for group, f in data.at_peak(plan).items()
        )
        most = units.tag(f"{verdict.max_context:,}", plan.memory.kind)
        return [
            t("less", memory=memory, reserve=reserve),
            t("filled", parts=t("comma").join(parts)),
            t("longest", tokens=most) if verdict.max_context else t("longest_none"),
        ]

    def _prices(self, remedy: Remedy) -> str:
        """Every loss, with the changes that bring it."""
        t, out = self.frame.t, ""
        for loss, changes in remedy.prices:
            of = f'{text(t("colon"))}<span lang="en">{text("; ".join(changes))}</span>'
            out += f'<p class="note">{text(t(f"loss.{loss}"))}{of if changes else ""}</p>'
        return out

    def _flags(self, plan: Plan, flags: dict[str, str]) -> str:
        blocks = ("\n".join(copyable(plan, engine, given)) for engine, given in flags.items())
        return "".join(f"<pre>{text(block)}</pre>" for block in blocks)

    def _phases(self, plan: Plan) -> str:
        t, found = self.frame.t, data.phases(plan)
        columns = [
            (
                plan_words(phase, self.frame.language),
                [
                    Piece(g, n, self.names[g] + t("colon") + units.memory(n))
                    for g, n in groups.items()
                ],
            )
            for phase, groups in found.peaks.items()
        ]
        limit = None
        if plan.verdict is not None:
            most = plan.verdict.capacity
            limit = (float(most), t("capacity", n=units.memory(most)))
        chart = stacked_columns(t("phases"), columns, units.short_memory, limit)
        keys = legend((g, self.names[g]) for g in found.groups)
        return (
            f'<h2>{text(t("phases"))}</h2><p class="note">{text(t("phases_note"))}</p>'
            f"<figure>{chart}{keys}</figure>"
        )

    def _modes(self, plan: Plan) -> str:
        t, found = self.frame.t, data.modes(plan)
        head = f"<h2>{text(t('modes'))}</h2>"
        if not found.timelines:
            return f'{head}<p class="note">{text(t("modes_none"))}</p>'
        tokens = units.integer(prefill_tokens(plan.workload))
        note = f'<p class="note">{text(t("modes_note", tokens=tokens))}</p>'
        if plan.workload.engine in ("llama.cpp", "vllm"):
            engine = t("modes_engine", engine=plan.workload.engine)
            note += f'<p class="note">{text(engine)}</p>'
        drawn = []
        for mode, line in found.timelines.items():
            title = t(f"execution.{mode}")
            bars = timeline_bars(title, line, found.most, units.short_memory, t("kept"))
            drawn.append(f"<figure><h3>{text(title)}</h3>{bars}</figure>")
        roles = {x.role for line in found.timelines.values() for s in line.steps for x in s.alive}
        keys = legend((css, t(f"role.{role}")) for role, css in ROLES.items() if role in roles)
        named = [
            (t("mode_peak", mode=t(f"execution.{mode}")), figure)
            for mode, figure in found.peaks.items()
        ]
        figures = figure_list(named, self.frame.around, how=self.frame.state["how"])
        return f'{head}{note}<div class="grid wide-cells">{"".join(drawn)}</div>{keys}{figures}'

    def _label(self, label: str, alive: Sequence[str]) -> str:
        """What takes memory, and in which phases."""
        language = self.frame.language
        left, mark, right = ("（", "、", "）") if language == "zh" else (" (", ", ", ")")
        phases = mark.join(plan_words(phase, language) for phase in alive)
        return f"{plan_words(label, language)}{left}{phases}{right}"

    def _items(self, plan: Plan) -> str:
        t = self.frame.t
        named = [
            (self._label(label, alive), figure)
            for label, _, alive, figure in data.phases(plan).items
        ]
        keys = ("memory.peak", "memory.host", "device.memory", "device.reserve", "device.capacity")
        named += [(self.names[k], plan.figures[k]) for k in keys if k in plan.figures]
        rows = figure_list(named, self.frame.around, how=self.frame.state["how"])
        notes = "".join(f"<li>{text(note)}</li>" for note in plan.notes)
        quoted = self.frame.quoted(f"<ul>{notes}</ul>")
        listed = f"<h2>{text(t('notes'))}</h2>{quoted}" if notes else ""
        note = f'<p class="note">{text(t("items_note"))}</p>'
        return f"<h2>{text(t('items'))}</h2>{note}{rows}{listed}"
