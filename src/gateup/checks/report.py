"""What a check found, in the terminal and as JSON (docs/json-schema.md explains each path)."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from rich.console import Console
from rich.text import Text

from gateup import __version__
from gateup.account.report import units
from gateup.account.report.console import line, make_console
from gateup.checks.context import NEEDS, Context
from gateup.checks.finding import SEVERITIES, Evidence, Finding, Severity
from gateup.checks.rule import Rule

SCHEMA = "gateup.check/1"
STYLES: Mapping[Severity, str] = {"error": "bold red", "warning": "bold yellow", "note": "cyan"}


@dataclass(frozen=True)
class CheckReport:
    """What a check found.

    name      the model's, as opened; the ref where it could not be opened
    findings  errors first, then by rule
    ran       ids of the rules that ran to their end
    skipped   rule -> why it did not run
    failed    rule -> what it stumbled over: a fault of the rule, or input odder than it foresaw
    context   what the rules saw; None where the model could not be read
    """

    name: str
    findings: tuple[Finding, ...]
    ran: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    context: Context | None = None

    def count(self, severity: Severity) -> int:
        return sum(f.severity == severity for f in self.findings)

    @property
    def readable(self) -> bool:
        return self.context is not None

    @property
    def exit_code(self) -> int:
        """0: no errors; 1: errors found; 2: the model could not be read."""
        if not self.readable:
            return 2
        return 1 if self.count("error") else 0

    def print(self) -> None:
        """What `gateup check` prints."""
        render(self, make_console())

    def __str__(self) -> str:
        """The same as plain text."""
        text = io.StringIO()
        render(self, make_console(text))
        return text.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """The document of `gateup check --json` (schema gateup.check/1)."""
        return to_json(self)


def render(report: CheckReport, console: Console) -> None:
    """Every finding, worst first, then what ran and what did not."""
    line(console, report.name, "bold")
    for finding in report.findings:
        console.print()
        _finding(finding, console)
    for rule, text in report.failed.items():
        console.print()
        line(console, f"rule {rule} could not be carried out: {text}", "bold magenta")
    console.print()
    line(console, summary(report), "bold")
    for text in measured(report):
        line(console, text)
    for reason, rules in _by_reason(report).items():
        line(console, f"not checked, {reason}: {', '.join(rules)}", "dim")


def measured(report: CheckReport) -> list[str]:
    """What --deep measured, in sentences, and what it would need where it could not."""
    context = report.context
    if context is None:
        return []
    out = []
    scan, trial = context.scan, context.trial
    if scan is not None:
        bad = sum(b.nans + b.infinities for b in scan.not_finite)
        numbers = f"{bad:,} values are no numbers" if bad else "every value is a number"
        out.append(f"measured: {scan.tensors:,} tensors read, {numbers}")
    if trial is not None:
        costs = ", ".join(f"{o.loss:.2f} {o.words}" for o in trial.orders)
        out.append(
            f"measured: a text of {trial.tokens:,} tokens costs {costs} (nats a token; guessing"
            f" {math.log(trial.vocab):.2f})"
        )
        if trial.layers:
            h = max(trial.layers, key=lambda x: x.h_max)
            y = max(trial.layers, key=lambda x: x.out_max)
            out.append(
                f"measured: largest |h| {_large(h.h_max)} in layer {h.layer}, largest |output| of"
                f" down_proj {_large(y.out_max)} in layer {y.layer}; float16 ends at 65,504"
            )
    elif scan is not None and context.tokenizer is None and context.checkpoint.kind != "gguf":
        out.append(
            "not measured: the text's loss, for want of a tokenizer: tokenizer.json must lie beside"
            " the model, or its folder be named with --tokenizer"
        )
    return out


def _large(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def summary(report: CheckReport) -> str:
    """ "2 errors, 1 note; 19 rules ran, 4 were skipped"."""
    if not report.readable:
        return "the model cannot be read: nothing else was checked"
    counts = [(report.count(s), s) for s in SEVERITIES]
    found = ", ".join(f"{n} {s}{'s' if n > 1 else ''}" for n, s in counts if n)
    parts = [f"{len(report.ran)} rule{'s' if len(report.ran) != 1 else ''} ran"]
    if report.skipped:
        parts.append(f"{len(report.skipped)} skipped")
    if report.failed:
        parts.append(f"{len(report.failed)} failed")
    return f"{found or 'nothing found'}; {', '.join(parts)}"


def _by_reason(report: CheckReport) -> dict[str, list[str]]:
    """Reason -> what was skipped for it: "adapter.* (12)" where no rule of the topic ran,
    "generation.greedy, generation.length" where others did."""
    by_reason: dict[str, list[str]] = {}
    for rule, reason in report.skipped.items():
        by_reason.setdefault(reason, []).append(rule)
    began = set(map(_topic, (*report.ran, *report.failed)))
    out: dict[str, list[str]] = {}
    for reason, rules in by_reason.items():
        here = Counter(map(_topic, rules))
        said = {
            r: f"{_topic(r)}.* ({here[_topic(r)]})"
            if here[_topic(r)] > 1 and _topic(r) not in began
            else r
            for r in rules
        }
        out[reason] = list(dict.fromkeys(said.values()))
    return out


def _topic(rule: str) -> str:
    return rule.partition(".")[0]


def _finding(finding: Finding, console: Console) -> None:
    head = Text(finding.severity, STYLES[finding.severity])
    head.append(f"  {finding.rule}  ", "dim")
    head.append(units.printable(finding.title), "bold")
    console.print(head)
    for evidence in finding.evidence:
        line(console, _evidence(evidence), indent=2)
    if finding.more:
        line(console, f"and {finding.more:,} more", indent=2)
    if finding.cause:
        line(console, f"why: {finding.cause}", indent=2)
    if finding.remedy:
        line(console, f"remedy: {finding.remedy}", "green", indent=2)


def _evidence(e: Evidence) -> str:
    text = f"{e.subject}: {e.found}" if e.subject else e.found
    if e.expected:
        text += f"; expected {e.expected}"
    return text + (f" ({e.source})" if e.source else "")


def render_list(rules: Iterable[Rule], console: Console) -> None:
    """One line per rule: id, the worst it reports, title, what it needs."""
    known = list(rules)
    width = max(len(r.id) for r in known)
    for rule in known:
        needs = ", ".join(option(n) for n in NEEDS if n in rule.needs and n != "headers")
        text = Text(rule.id.ljust(width + 2), "bold")
        text.append(rule.worst.ljust(9), STYLES[rule.worst])
        text.append(rule.title)
        if needs:
            text.append(f"  [{needs}]", "dim")
        console.print(text, soft_wrap=True)


def option(need: str) -> str:
    """The command line's word for a part of the context."""
    if need in ("scan", "trial"):
        return "--deep"
    return "trainer_state.json" if need == "trainer_state" else f"--{need}"


def render_rule(rule: Rule, console: Console) -> None:
    """What `--explain` prints."""
    line(console, f"{rule.id}: {rule.title}", "bold")
    line(console, f"severity: {rule.severities}", STYLES[rule.worst])
    missing = [NEEDS[n] for n in NEEDS if n in rule.needs]
    if missing:
        line(console, f"skipped where {' or '.join(missing)}", "dim")
    for paragraph in rule.teaches.split("\n\n"):
        console.print()
        if paragraph.startswith("    "):
            for row in paragraph.splitlines():
                line(console, row.removeprefix("    "), indent=4)
        else:
            line(console, " ".join(paragraph.split()))


def to_json(report: CheckReport) -> dict[str, Any]:
    """The document of `gateup check --json`."""
    return {
        "schema": SCHEMA,
        "generator": f"gateup {__version__}",
        "model": _model(report),
        "readable": report.readable,
        "counts": {s: report.count(s) for s in SEVERITIES},
        "findings": [_finding_json(f) for f in report.findings],
        "measured": measured(report),
        "ran": list(report.ran),
        "skipped": dict(report.skipped),
        "failed": dict(report.failed),
    }


def _model(report: CheckReport) -> dict[str, Any]:
    if report.context is None:
        return {"name": report.name}
    checkpoint = report.context.checkpoint
    return {
        "name": report.name,
        "family": checkpoint.spec.family,
        "architecture": checkpoint.spec.architecture,
        "source": {
            "kind": checkpoint.kind,
            "path": None if checkpoint.path is None else str(checkpoint.path),
            "label": checkpoint.label,
            "file_bytes": checkpoint.file_nbytes,
        },
    }


def _finding_json(f: Finding) -> dict[str, Any]:
    return {
        "rule": f.rule,
        "severity": f.severity,
        "title": f.title,
        "evidence": [
            {"subject": e.subject, "found": e.found, "expected": e.expected, "source": e.source}
            for e in f.evidence
        ],
        "more": f.more,
        "cause": f.cause,
        "remedy": f.remedy,
        "numbers": {k: _number(v) for k, v in f.numbers.items()},
    }


def _number(value: int | float | str) -> int | float | str:
    """JSON has no NaN and no infinity: as words."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def rules_to_json(rules: Iterable[Rule]) -> list[dict[str, Any]]:
    """The document of `gateup check --list --json`."""
    return [
        {
            "id": r.id,
            "title": r.title,
            "worst": r.worst,
            "needs": sorted(r.needs),
            "teaches": r.teaches,
        }
        for r in rules
    ]


def schema() -> dict[str, Any]:
    """The JSON Schema of `to_json`'s document."""
    text = files(__package__).joinpath("check.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded
