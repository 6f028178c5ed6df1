"""One self-contained page: tables, and plots that gateup draws itself. No script, no fetches."""

from __future__ import annotations

import errno
import os
import shlex
import stat
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from gateup import __version__
from gateup.account.figure import Figure
from gateup.account.file_size import file_text
from gateup.account.ledger import LEDGER_PARTS
from gateup.account.plan import Plan
from gateup.account.report import units
from gateup.account.report.charts import charts
from gateup.account.report.style import STYLE
from gateup.account.report.tables import (
    at_peak,
    capacity,
    compared,
    comparison_notes,
    copyable,
    item_label,
    key_figures,
    longest,
    prices,
)
from gateup.account.report.units import tag, tagged
from gateup.errors import UsageError

# How a page begins; a file that begins otherwise is not overwritten.
PAGES = (b"<!doctype html", b"<html", b"<?xml", b"<!--")


def to_html(plans: Sequence[Plan]) -> str:
    """The page of one plan, or of several: a comparison first, then each."""
    names = ", ".join(p.spec.name for p in plans)
    body = [side_by_side(plans)] if len(plans) > 1 else []
    body += [section(p) for p in plans]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # The page may load nothing, whatever a model's name contains.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{_text(names)} · gateup plan</title><style>{STYLE}</style></head><body><main>"
        + "\n".join(body)
        + f"<footer>{escape(units.LEGEND)}<br>gateup {__version__}</footer>"
        "</main></body></html>\n"
    )


def write_html(plans: Sequence[Plan], path: Path) -> None:
    """Write the page to `path`: whole or not at all, through links; straight into a pipe or device.

    Raises UsageError where the folder does not exist or cannot be written to, and where `path` is
    a file that is no page: most likely a model, typed in the wrong place.
    """
    page = to_html(plans).encode("utf-8", "backslashreplace")
    try:
        kind = path.stat().st_mode
    except OSError:  # not there yet, or not to be seen: the write will tell
        kind = 0
    if stat.S_ISDIR(kind):
        raise UsageError(f"--html: {path} is a folder", expected="the name of a file")
    target = path
    if kind and not stat.S_ISREG(kind):
        write = _write_into
    else:
        write, target = _replace, Path(os.path.realpath(path))
        if not target.parent.is_dir():
            raise UsageError(
                f"--html: the folder {target.parent if path.is_symlink() else path.parent} "
                "does not exist",
                remedy=f"create it: mkdir -p {shlex.quote(str(path.parent))}",
            )
    try:
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if kind and write is _replace:
            _refuse_other(target)
        write(target, page)
    except OSError as e:
        raise UsageError(f"--html: {path} cannot be written: {e.strerror or e}") from None


def _refuse_other(path: Path) -> None:
    """Raise UsageError where the file has something in it that is no HTML page."""
    with path.open("rb") as file:
        start = file.read(1024)
    if start and not start.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(PAGES):
        raise UsageError(
            f"--html: {path} is there and is no HTML page",
            expected="a new name, or a page to replace",
            remedy="remove the file first if it may go",
        )


def _write_into(path: Path, page: bytes) -> None:
    """Into a pipe or device, which must stay what it is. A pipe nobody reads is refused."""
    handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(handle, True)
    with os.fdopen(handle, "wb") as file:
        file.write(page)


def _replace(path: Path, page: bytes) -> None:
    """In the same folder first, so that the rename stays within one file system."""
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
        with os.fdopen(handle, "wb") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)  # mkstemp's own mode is 0600
        Path(temporary).replace(path)
        temporary = None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _text(content: str) -> str:
    return escape(units.printable(content))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], classes: Sequence[str] = ()) -> str:
    """Cells are HTML already; the first column is text, the others numbers."""
    out = ['<div class="wide"><table>']
    if any(head):
        out.append("<tr>" + "".join(f"<th>{escape(h)}</th>" for h in head) + "</tr>")
    for i, row in enumerate(rows):
        css = f' class="{classes[i]}"' if i < len(classes) and classes[i] else ""
        out.append(f"<tr{css}>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>")
    return "".join([*out, "</table></div>"])


def section(plan: Plan) -> str:
    spec, work = plan.spec, plan.workload
    facts = (
        f"{spec.architecture} · {spec.num_layers} layers · hidden {spec.hidden_size:,} · "
        f"vocabulary {spec.vocab_size:,}"
    )
    run = f"weights {plan.label} · {work.engine} · context {work.ctx:,} · batch {work.batch}"
    if work.training is not None:
        run += f" · training: {work.training.method}"
    size = file_text(plan.figures)
    if size is not None:
        run += f" · file {size}"
    parts = [
        f"<section><h1>{_text(spec.name)}</h1><p>{_text(facts)}<br>{_text(run)}</p>",
        _verdict(plan),
        "<h2>Where it goes</h2>",
        _where(plan),
        *charts(plan),
        "<h2>Memory, by use</h2>",
        _memory(plan),
        "<h2>Figures</h2>",
        _figures(plan),
        _formulas(plan.figures),
    ]
    if plan.notes:
        notes = "".join(f"<li>{_text(n)}</li>" for n in plan.notes)
        parts.append(f"<h2>Notes</h2><ul>{notes}</ul>")
    return "".join([*parts, "</section>"])


def _verdict(plan: Plan) -> str:
    verdict, device = plan.verdict, plan.device
    if verdict is None or device is None:
        return ""
    css = "yes" if verdict.fits else "no"
    peak = tag(units.memory(verdict.peak), plan.memory.kind)
    out = [
        f'<div class="verdict {css}"><strong>{"Fits" if verdict.fits else "Does not fit"} '
        f"{_text(device.label)}</strong><br>peak {peak} in phase {_text(verdict.phase)}, capacity "
        f"{tagged(plan.figures['device.capacity'])}: {_text(capacity(plan))}"
        f"<br>at the peak: {_text(at_peak(plan))}<br>{_text(longest(plan))}"
        + "".join(f"<br>{_text(note)}" for note in verdict.notes)
        + (f"<br>run it with{_flags(plan, verdict.flags)}" if any(verdict.flags.values()) else "")
        + "</div>"
    ]
    if verdict.remedies:
        out.append("<h2>What would make it fit</h2><ol>")
        for r in verdict.remedies:
            kind = r.scenario.memory().kind
            loss = "".join(f"<br>{_text(price)}" for price in prices(r))
            said = f"<pre>{_text(r.command)}</pre>" if r.command else ""
            said = said or (f"<br>{_text(r.unsaid)}" if r.unsaid else "")
            out.append(
                f"<li><strong>{_text('; '.join(r.changes))}</strong>: peak "
                f"{tag(units.memory(r.peak), kind)}{loss}{said}{_flags(plan, r.elsewhere)}</li>"
            )
        out.append("</ol>")
    return "".join(out)


def _flags(plan: Plan, flags: Mapping[str, str]) -> str:
    """Each engine's flags as lines to copy."""
    blocks = ("\n".join(copyable(plan, engine, text)) for engine, text in flags.items())
    return "".join(f"<pre>{_text(block)}</pre>" for block in blocks)


def _where(plan: Plan) -> str:
    parts, total = plan.ledger.by_part(), plan.ledger.total
    rows, classes = [], []
    for part in LEDGER_PARTS:
        t = parts[part]
        if t.params or t.nbytes or t.flops:
            name = "MLP" if part == "mlp" else part
            rows.append(
                [
                    f'<i class="key b-{part}"></i>{name}',
                    tag(units.integer(t.params)),
                    units.share(t.params, total.params),
                    tag(units.memory(t.nbytes)),
                    units.share(t.nbytes, total.nbytes),
                    tag(units.si(t.flops)),
                    units.share(t.flops, total.flops),
                ]
            )
            classes.append("hot" if part == "mlp" else "")
    rows.append(
        [
            "total",
            tag(units.integer(total.params)),
            "",
            tag(units.memory(total.nbytes)),
            "",
            tag(units.si(total.flops)),
            "",
        ]
    )
    head = ("part", "parameters", "", "bytes", "", "GEMM FLOP/token", "")
    return table(head, rows, [*classes, "total"])


def _memory(plan: Plan) -> str:
    memory = plan.memory
    rows = [
        [
            f'<i class="key b-{item.group}"></i>{_text(item_label(plan, item))}',
            tag(units.memory(item.nbytes), item.figure.kind),
            units.share(item.nbytes, memory.peak) if memory.peak_phase in item.phases else "",
            _text(", ".join(item.phases)),
        ]
        for item in memory.items
    ]
    return table(("use", "bytes", "of peak", "alive in"), rows)


def _figures(plan: Plan) -> str:
    rows = [[_text(name), _text(tagged(plan.figures[path]))] for path, name in key_figures(plan)]
    for path, figure in plan.figures.items():
        if path.startswith(("roofline.", "measured.")):
            rows.append([_text(path.replace(".", ": ").replace("_", " ")), _text(tagged(figure))])
    if plan.crossover.model.why:
        rows.append(["attention overtakes the MLP", f"never: {_text(plan.crossover.model.why)}"])
    return table(("", ""), rows)


def _formulas(figures: Mapping[str, Figure]) -> str:
    rows = [
        [
            _text(path),
            _text(f"{tagged(f)} ({units.raw(f.value)} {f.unit})"),
            f"<code>{_text(f.formula)}</code><br><code>{_text(f.numbers)}</code><br>"
            f"<small>{_text(f.source)}</small>",
        ]
        for path, f in figures.items()
    ]
    return (
        "<details><summary>Every figure's formula, numbers and source</summary>"
        + table(("figure", "value", "how"), rows)
        + "</details>"
    )


def side_by_side(plans: Sequence[Plan]) -> str:
    """A column for each model."""
    rows = [[_text(name), *map(_text, values)] for name, values in compared(plans)]
    hot = ["hot" if name.startswith("MLP") else "" for name, _ in compared(plans)]
    head = ["", *(units.printable(p.spec.name) for p in plans)]
    notes = "".join(f"<p>{_text(n)}</p>" for n in comparison_notes(plans))
    return "<h1>Side by side</h1>" + table(head, rows, hot) + notes
