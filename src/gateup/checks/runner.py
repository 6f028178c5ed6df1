"""Runs every rule whose needs are met; one that stumbles over odd input reports itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateup.checks import (
    adapter_rules,
    adapter_size_rules,
    config_rules,
    generation_rules,
    layout_rules,
    quant_rules,
    rope_rules,
    semantics_rules,
    split_rules,
    state_rules,
    stop_rules,
    tensor_rules,
    trainer_rules,
    trainer_size_rules,
)
from gateup.checks.context import NEEDS, Context
from gateup.checks.finding import SEVERITIES, Finding, Severity
from gateup.checks.inputs import Request, Settings, read_context
from gateup.checks.rule import Rule, rules_of
from gateup.errors import GateupError, UsageError

# Modules whose rules run.
MODULES = (
    adapter_rules,
    adapter_size_rules,
    config_rules,
    generation_rules,
    layout_rules,
    quant_rules,
    rope_rules,
    semantics_rules,
    split_rules,
    state_rules,
    stop_rules,
    tensor_rules,
    trainer_rules,
    trainer_size_rules,
)
RULES: tuple[Rule, ...] = rules_of(MODULES)

# What odd input can make a rule raise. Programs' own ends (KeyboardInterrupt, MemoryError, …)
# pass through.
STUMBLES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    GateupError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


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


def run_rules(context: Context, rules: Iterable[Rule] = RULES) -> CheckReport:
    """Every rule over one context."""
    findings: list[Finding] = []
    ran: list[str] = []
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    for rule in rules:
        missing = [n for n in NEEDS if n in rule.needs and not context.has(n)]
        if missing:
            skipped[rule.id] = "; ".join(NEEDS[n] for n in missing)
            continue
        try:
            found = rule(context)
        except STUMBLES as error:
            text = error.what if isinstance(error, GateupError) else str(error)
            failed[rule.id] = f"{type(error).__name__}: {text}"
            continue
        ran.append(rule.id)
        findings.extend(found)
    findings.sort(key=lambda f: (SEVERITIES.index(f.severity), f.rule))
    return CheckReport(context.spec.name, tuple(findings), tuple(ran), skipped, failed, context)


def check(
    ref: str | Path,
    *,
    adapter: str | Path | None = None,
    base: str | Path | None = None,
    tokenizer: str | Path | None = None,
    tp: int | None = None,
    quant: str | None = None,
    trainer: Settings | None = None,
    generation: Settings | None = None,
    deep: bool = False,
) -> CheckReport:
    """What is wrong with `ref`, from headers and settings alone; no weights are read.

    >>> import gateup
    >>> gateup.check("smollm2").findings
    ()

    ref         as for gateup.open: folder, file, adapter folder, preset, "smollm2"
    adapter     an adapter's folder to check against `ref`
    base        of an adapter's folder: its base; otherwise a second model to compare with
    tokenizer   a folder of tokenizer files; default: those beside the model
    tp          tensor-parallel degree to serve at
    quant       format to convert to: "q4_k_m", "awq:128", "fp8:128"
    trainer     a trainer's YAML or JSON, or its settings as a mapping
    generation  a generation_config.json, or its settings as a mapping

    A model that is there and cannot be read gives a report with that one finding. Raises
    UsageError for options that cannot be, InputError for what is not there.
    """
    if deep:
        raise UsageError(
            "checks that read weights are not part of this version",
            expected="no --deep: the rules look at headers and settings",
        )
    request = Request(adapter, base, tokenizer, tp, quant, trainer, generation)
    try:
        context = read_context(ref, request)
    except UsageError:
        raise
    except GateupError as error:
        if not _is_there(ref):
            raise
        return CheckReport(str(ref), (tensor_rules.unreadable(error),))
    return run_rules(context)


def _is_there(ref: str | Path) -> bool:
    """Whether the ref names a file or folder, rather than nothing."""
    try:
        return Path(ref).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False


def find_rule(name: str, rules: Iterable[Rule] = RULES) -> Rule:
    """The rule of that id. Raises UsageError naming the closest."""
    from difflib import get_close_matches

    by_id = {r.id: r for r in rules}
    if name in by_id:
        return by_id[name]
    close = get_close_matches(name, by_id, n=3, cutoff=0.4)
    raise UsageError(
        f"there is no rule {name!r}",
        expected="an id that gateup check --list prints",
        remedy="did you mean " + " or ".join(close) + "?" if close else None,
    )
