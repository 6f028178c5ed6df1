"""A plan in the terminal: the verdict first, then where everything goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from gateup.account.figure import Figure, worst
from gateup.account.file_size import file_text
from gateup.account.ledger import LEDGER_PARTS
from gateup.account.memory_items import MemoryItem
from gateup.account.plan import Plan, phase_figure
from gateup.account.remedies import Remedy
from gateup.account.report import units
from gateup.account.report.console import bar, cell, columns, heading, line, put, verbatim
from gateup.account.report.units import tag, tagged
from gateup.model import presets

# The MLP has the warm colour to itself.
PART_STYLES: Mapping[str, str] = {
    "mlp": "bold dark_orange",
    "attention": "cyan",
    "embedding": "green",
    "head": "blue",
    "norm": "magenta",
    "other": "bright_black",
}
GROUP_STYLES: Mapping[str, str] = {
    "weights": "cyan",
    "kv": "blue",
    "mlp": "bold dark_orange",
    "attention": "green",
    "norm": "magenta",
    "logits": "yellow",
    "adapter": "bright_magenta",
    "gradients": "red",
    "optimizer": "bright_red",
    "buffers": "bright_blue",
}


def render(plan: Plan, console: Console) -> None:
    """The whole answer for one model."""
    _title(plan, console)
    if plan.verdict is not None:
        _verdict(plan, console)
    _where(plan, console)
    _memory(plan, console)
    _key_figures(plan, console)
    _measured(plan, console)
    _notes(plan.notes, console)
    console.print()
    line(console, units.LEGEND, "dim")


def _title(plan: Plan, console: Console) -> None:
    spec, work = plan.spec, plan.workload
    line(console, f"{spec.name}  {spec.architecture}", "bold")
    widths = sorted({_width(x.mlp) for x in spec.layers if x.mlp})
    wide = f"{widths[0]:,}" if len(widths) == 1 else f"{widths[0]:,} to {widths[-1]:,}"
    line(
        console,
        f"{spec.num_layers} layers, hidden {spec.hidden_size:,}, "
        + (f"MLP width {wide}, " if widths else "no MLP, ")
        + f"vocabulary {spec.vocab_size:,}"
        + (" (tied head)" if spec.tie_word_embeddings else ""),
    )
    run = [f"weights {plan.label}", f"engine {work.engine}", f"context {work.ctx:,}"]
    run.append(f"batch {work.batch}")
    if work.training is None:
        run.append(f"KV {work.kv_type}")
    else:
        run.append(_training(plan))
    p = work.parallel
    run += [f"{k} {getattr(p, k)}" for k in ("tp", "pp", "ep", "fsdp") if getattr(p, k) > 1]
    line(console, ", ".join(run))
    if (size := file_text(plan.figures)) is not None:
        line(console, f"file {size}")


def _width(mlp: Any) -> int:
    """One expert's width in a MoE, the MLP's own elsewhere."""
    return int(mlp.expert.intermediate_size if hasattr(mlp, "expert") else mlp.intermediate_size)


def _training(plan: Plan) -> str:
    training = plan.workload.training
    assert training is not None
    if training.method == "full":
        return f"full training, {training.optimizer}"
    return (
        f"{training.method} rank {training.lora.rank} on {'+'.join(training.lora.targets)}, "
        f"{training.optimizer}"
    )


# What a remedy's loss means for its user.
LOSSES: Mapping[str, str] = {
    "none": "no quality is lost",
    "tiny": "a trace of quality is lost",
    "some": "some quality is lost",
    "hardware": "it takes more hardware",
    "capability": "it does less: a shorter context, or a smaller model",
}


def _verdict(plan: Plan, console: Console) -> None:
    verdict, device, kind = plan.verdict, plan.device, plan.memory.kind
    assert verdict is not None
    assert device is not None
    console.print()
    peak = tag(units.memory(verdict.peak), kind)
    each = " each" if device.count > 1 else ""
    line(
        console,
        f"{'FITS' if verdict.fits else 'DOES NOT FIT'} {device.label}: peak {peak}{each} "
        f"in phase {verdict.phase}, capacity {tagged(plan.figures['device.capacity'])}{each}",
        "bold green" if verdict.fits else "bold red",
    )
    line(console, f"capacity: {capacity(plan)}", indent=2)
    line(console, f"at the peak: {at_peak(plan)}", indent=2)
    line(console, longest(plan), indent=2)
    for note in verdict.notes:
        line(console, note, indent=2)
    if any(verdict.flags.values()):
        line(console, "run it with", indent=2)
        _flags(plan, verdict.flags, console, 5)
    if verdict.remedies:
        _remedies(plan, console)


def longest(plan: Plan) -> str:
    """The largest context that fits, in words."""
    most = plan.verdict.max_context if plan.verdict else 0
    if not most:
        return "no context fits as stated"
    return f"largest context that fits as stated: {tag(f'{most:,} tokens', plan.memory.kind)}"


def capacity(plan: Plan) -> str:
    """Where a device's capacity comes from."""
    memory, reserve = plan.figures["device.memory"], plan.figures["device.reserve"]
    return f"{tagged(memory)} less {tagged(reserve)} ({reserve.source})"


def at_peak(plan: Plan) -> str:
    """What fills the peak, the largest first."""
    groups: dict[str, list[Figure]] = {}
    for item in plan.memory.alive(plan.memory.peak_phase):
        groups.setdefault(item.group, []).append(item.figure)
    sums = {g: sum(f.value for f in figures) for g, figures in groups.items()}
    return ", ".join(
        f"{g} {tag(units.memory(sums[g]), worst(*(f.kind for f in groups[g])))} "
        f"({units.share(sums[g], plan.memory.peak)})"
        for g in sorted(sums, key=lambda g: -sums[g])
    )


def _remedies(plan: Plan, console: Console) -> None:
    assert plan.verdict is not None
    heading(console, "What would make it fit, the cheapest first")
    for n, remedy in enumerate(plan.verdict.remedies, 1):
        peak = tag(units.memory(remedy.peak), remedy.scenario.memory().kind)
        line(console, f"{n}. {'; '.join(remedy.changes)}: peak {peak}", "bold", indent=2)
        for price in prices(remedy):
            line(console, price, indent=5)
        if remedy.command:
            verbatim(console, remedy.command, "cyan", 5)
        elif remedy.unsaid:
            line(console, remedy.unsaid, indent=5)
        _flags(plan, remedy.elsewhere, console, 5)


def prices(remedy: Remedy) -> list[str]:
    """What a remedy costs, in words: every loss, with the changes that bring it."""
    return [
        LOSSES[loss] + (f": {'; '.join(changes)}" if changes else "")
        for loss, changes in remedy.prices
    ]


def _flags(plan: Plan, flags: Mapping[str, str], console: Console, indent: int) -> None:
    for engine, text in flags.items():
        head, *block = copyable(plan, engine, text)
        verbatim(console, head, "cyan", indent)
        for setting in block:
            verbatim(console, setting, "cyan", indent + 2)


def copyable(plan: Plan, engine: str, flags: str) -> list[str]:
    """A remedy's flags as lines to copy: one, or LLaMA-Factory's YAML under its name."""
    if engine != "llama-factory":
        return [f"{engine}: {flags}"]
    settings = dict(f.split("=", 1) for f in flags.split() if "=" in f)
    ordered = {"model_name_or_path": model_name(plan), **settings}
    return ["llama-factory, YAML:", *(f"{k}: {v}" for k, v in ordered.items())]


def model_name(plan: Plan) -> str:
    """The model as other programs find it: its folder, its name on the Hub, or its own name."""
    path = plan.checkpoint.path
    preset = presets.find(plan.spec.name) if path is None else None
    if path is not None:
        return str(path if path.is_dir() else path.parent)
    return preset.hub_id if preset else plan.spec.name


def _where(plan: Plan, console: Console) -> None:
    """Parameters, bytes and FLOPs per token by part."""
    heading(console, "Where it goes (FLOPs: matrix products of one token)")
    parts, total = plan.ledger.by_part(), plan.ledger.total
    room = min(24, console.width - 84)  # what the numbers leave for the bar
    wide = room >= 8
    names = ["part", *([""] if wide else [])]
    table = columns(
        console, *names, "parameters", "", "bytes", "", "FLOP/token", "", left=len(names)
    )
    for part in LEDGER_PARTS:
        t, style = parts[part], PART_STYLES[part]
        if not (t.params or t.nbytes or t.flops):
            continue
        share = t.params / total.params if total.params else 0.0
        table.add_row(
            cell("MLP" if part == "mlp" else part, style),
            *([bar(share, room, style)] if wide else []),
            cell(tag(units.integer(t.params)), style),
            cell(units.share(t.params, total.params), style),
            cell(tag(units.memory(t.nbytes)), style),
            cell(units.share(t.nbytes, total.nbytes), style),
            cell(tag(units.si(t.flops)), style),
            cell(units.share(t.flops, total.flops), style),
        )
    table.add_row(
        cell("total", "bold"),
        *([Text("")] if wide else []),
        cell(tag(units.integer(total.params)), "bold"),
        Text(""),
        cell(tag(units.memory(total.nbytes)), "bold"),
        Text(""),
        cell(tag(units.si(total.flops)), "bold"),
        Text(""),
    )
    put(console, table)
    _layer_shares(plan, console)


def _layer_shares(plan: Plan, console: Console) -> None:
    """The MLP's share of a layer, for each kind of layer there is."""
    kinds = plan.ledger.layer_kinds()
    for shown, label in enumerate(kinds):
        if shown == 4:
            line(console, f"… and {len(kinds) - 4} more kinds of layer (--json has all)", indent=2)
            break
        params = plan.figures[f"layers.{label}.params.mlp_share"]
        flops = plan.figures[f"layers.{label}.flops.mlp_share"]
        line(
            console,
            f"MLP share of a layer ({label}): {tagged(params)} of parameters, "
            f"{tagged(flops)} of GEMM FLOPs",
            indent=2,
        )


def _memory(plan: Plan, console: Console) -> None:
    memory = plan.memory
    each = " on the fullest device" if plan.workload.parallel.world > 1 else ""
    heading(console, f"Memory{each}")
    wide = console.width >= 90
    names = ["use", *(["share of peak"] if wide else []), "alive in"]
    table = columns(console, *names, "bytes", "of peak", left=len(names))
    for item in memory.items:
        style = GROUP_STYLES[item.group]
        at_peak = memory.peak_phase in item.phases
        part = item.nbytes / memory.peak if at_peak and memory.peak else 0.0
        every = len(item.phases) == len(memory.peaks) > 1
        table.add_row(
            cell(item_label(plan, item), style),
            *([bar(part, 16, style)] if wide else []),
            cell("all phases" if every else ", ".join(item.phases)),
            cell(tag(units.memory(item.nbytes), item.figure.kind), style),
            cell(units.share(item.nbytes, memory.peak) if at_peak else "", style),
        )
    put(console, table)
    line(
        console,
        "by phase: "
        + ", ".join(f"{p} {tagged(phase_figure(memory, p))}" for p in memory.peaks)
        + f"; peak in {memory.peak_phase}",
        indent=2,
    )


# (path of the figure, what it is called); figures that a plan does not have are passed over.
KEY_FIGURES: Sequence[tuple[str, str]] = (
    ("params.active", "active parameters"),
    ("params.non_embedding", "non-embedding parameters"),
    ("bytes.bits_per_param", "bits per weight"),
    ("adapter.params", "adapter parameters"),
    ("adapter.bytes", "adapter bytes"),
    ("adapter.mlp_share", "adapter: MLP share"),
    ("kv.total", "KV cache"),
    ("kv.per_token", "KV cache per token"),
    ("flops.decode.total", "decode, FLOPs of the next token"),
    ("flops.decode.mlp_share", "decode, MLP share of FLOPs"),
    ("flops.prefill.total", "prefill, FLOPs"),
    ("flops.prefill.mlp_share", "prefill, MLP share of FLOPs"),
    ("flops.training.total", "training, FLOPs of one step"),
    ("flops.training.mlp_share", "training, MLP share of FLOPs"),
    ("traffic.total", "bytes moved per decode step"),
    ("intensity.decode", "arithmetic intensity, decode"),
    ("intensity.prefill", "arithmetic intensity, prefill"),
    ("crossover.token", "attention overtakes the MLP: a token at context"),
    ("crossover.prefill", "attention overtakes the MLP: prefill of"),
    ("memory.host", "stays in host memory"),
)


def has_latent_cache(plan: Plan) -> bool:
    return any(x.attention and x.attention.mla for x in plan.spec.layers)


def item_label(plan: Plan, item: MemoryItem) -> str:
    """MLA's cache has two sizes: the latent, and keys and values expanded from it."""
    if item.group != "kv" or not has_latent_cache(plan):
        return item.label
    if plan.workload.engine == "transformers":
        return f"{item.label} as transformers holds it: expanded"
    return f"{item.label}: latent"


def key_figures(plan: Plan) -> list[tuple[str, str]]:
    """(path, name) of the key figures that the plan has."""
    latent = ": latent, as MLA engines hold it" if has_latent_cache(plan) else ""
    return [
        (path, name + latent if path.startswith("kv.") else name)
        for path, name in KEY_FIGURES
        if path in plan.figures
    ]


def _key_figures(plan: Plan, console: Console) -> None:
    heading(console, "Figures")
    table = columns(console, "", "", left=1)
    table.show_header = False
    for path, name in key_figures(plan):
        if not _redundant(plan, path):
            table.add_row(cell(name), cell(tagged(plan.figures[path])))
    if plan.crossover.model.why:
        table.add_row(cell("attention overtakes the MLP"), cell("never"))
    for name, figure in plan.roofline.items():
        table.add_row(cell(f"roofline: {name}"), cell(tagged(figure)))
    put(console, table)
    if plan.crossover.model.why:
        line(console, plan.crossover.model.why, indent=2)


def _measured(plan: Plan, console: Console) -> None:
    """Predicted beside observed, where --measure was given."""
    if plan.measured is None:
        return
    heading(console, "Measured on this machine")
    table = columns(console, "what", "predicted", "observed", "error")
    for row in plan.measured.rows:
        seen = units.written(Figure(row.observed, row.unit, "exact"))
        bound = row.predicted is not None and row.predicted.kind == "bound"
        error = "" if row.error is None or bound else f"{100 * row.error:+.1f} %"
        predicted = "" if row.predicted is None else tagged(row.predicted)
        table.add_row(cell(row.what), cell(predicted), cell(seen), cell(error))
    put(console, table)
    for how in dict.fromkeys(r.how for r in plan.measured.rows):
        line(console, how, "dim", indent=2)
    for note in plan.measured.notes:
        line(console, note, indent=2)


def _redundant(plan: Plan, path: str) -> bool:
    """Active parameters of a dense model are its parameters."""
    figures = plan.figures
    return path == "params.active" and figures[path].value == figures["params.total"].value


def _notes(notes: Iterable[str], console: Console) -> None:
    notes = list(notes)
    if notes:
        heading(console, "Notes")
        for note in notes:
            line(console, note, indent=2)


def render_side_by_side(plans: Sequence[Plan], console: Console) -> None:
    """Several models, a column each; more than the width holds go into a further table."""
    names = [units.printable(p.spec.name) for p in plans]
    label = max(len(name) for name, _, _ in COMPARED)
    each = max(16, min(24, max(len(n) for n in names))) + 2
    at_once = max(1, (console.width - label) // each)
    for start in range(0, len(plans), at_once):
        block = plans[start : start + at_once]
        table = columns(console, "", *(p.spec.name for p in block))
        for name, values in compared(block):
            style = PART_STYLES["mlp"] if name.startswith("MLP") else ""
            table.add_row(cell(name, style), *(cell(v, style) for v in values))
        put(console, table)
        if start + at_once < len(plans):
            console.print()
    _notes(comparison_notes(plans), console)
    console.print()
    line(console, units.LEGEND, "dim")


def comparison_notes(plans: Sequence[Plan]) -> list[str]:
    """What keeps the columns of a comparison from being alike."""
    contexts = {p.workload.ctx for p in plans}
    if len(contexts) > 1:
        return [
            "the contexts differ: FLOPs, KV cache and peak are each at the model's own context; "
            "--ctx sets one for all"
        ]
    if plans and plans[0].options.ctx is None:
        return [f"context {plans[0].workload.ctx:,} for all: no --ctx was given"]
    return []


# (name, path of the figure, how it is written; None: as its unit says)
COMPARED: Sequence[tuple[str, str, Callable[[float], str] | None]] = (
    ("parameters", "params.total", units.billions),
    ("active parameters", "params.active", units.billions),
    ("MLP share of parameters", "params.mlp_share", None),
    ("weights", "bytes.total", None),
    ("KV cache per token", "kv.per_token", units.memory),
    ("FLOPs of a decoded token", "flops.decode.total", None),
    ("FLOPs of a training step", "flops.training.total", None),
    ("attention overtakes at T*", "crossover.token", None),
    ("memory peak", "memory.peak", None),
)


def compared(plans: Sequence[Plan]) -> list[tuple[str, list[str]]]:
    """(name of the row, one text per plan), rows that no plan has left out."""
    rows: list[tuple[str, list[str]]] = [
        ("weights in", [p.label for p in plans]),
        ("engine", [p.workload.engine for p in plans]),
        ("context", [f"{p.workload.ctx:,}" for p in plans]),
    ]
    for name, path, write in COMPARED:
        found = [p.figures.get(path) for p in plans]
        if any(found):
            rows.append((name, [_written(f, write) for f in found]))
    if any(p.verdict is not None for p in plans):
        fits = {None: "-", True: "yes", False: "NO"}
        verdicts = [None if p.verdict is None else p.verdict.fits for p in plans]
        rows.append(("fits", [fits[v] for v in verdicts]))
    return rows


def _written(figure: Figure | None, write: Callable[[float], str] | None) -> str:
    if figure is None:
        return "never"
    return tag(write(figure.value), figure.kind) if write else tagged(figure)
