"""Runs every rule whose needs are met; one that stumbles over odd input reports itself."""

from __future__ import annotations

from collections.abc import Iterable
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
from gateup.checks.finding import SEVERITIES, Finding
from gateup.checks.inputs import Request, Settings, read_context
from gateup.checks.report import CheckReport
from gateup.checks.rule import Rule, rules_of
from gateup.errors import GateupError, UsageError
from gateup.files.checkpoint import open_model

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
    >>> gateup.check("smollm2").exit_code
    0

    ref         as for gateup.open: folder, file, adapter folder, preset, "smollm2"
    adapter     an adapter's folder to check against `ref`
    base        of an adapter's folder: its base; otherwise a second model to compare with
    tokenizer   a folder of tokenizer files; default: those beside the model
    tp          tensor-parallel degree to serve at
    quant       format to convert to: "q4_k_m", "awq:128", "fp8:128"
    trainer     a trainer's YAML or JSON, or its settings as a mapping
    generation  a generation_config.json, or its settings as a mapping

    A model that is there and cannot be read gives a report with that one finding. Raises
    GateupError for options that cannot be, and for named files that are not there or cannot be
    read.
    """
    if deep:
        raise UsageError(
            "checks that read weights are not part of this version",
            expected="no --deep: the rules look at headers and settings",
        )
    request = Request(adapter, base, tokenizer, tp, quant, trainer, generation)
    try:
        checkpoint = open_model(ref, base=base)
    except GateupError as error:
        if not _is_there(ref):
            raise
        return CheckReport(str(ref), (tensor_rules.unreadable(error),))
    return run_rules(read_context(checkpoint, request))


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
