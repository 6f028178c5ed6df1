"""Runs every rule whose needs are met; one that stumbles over odd input reports itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from gateup.checks import (
    adapter_layer_rules,
    adapter_rules,
    adapter_setting_rules,
    adapter_size_rules,
    adapter_target_rules,
    config_rules,
    deep_rules,
    generation_key_rules,
    generation_rules,
    gguf_rope_rules,
    layout_rules,
    name_rules,
    quant_config_rules,
    quant_rules,
    rope_rules,
    rope_scaling_rules,
    same_rules,
    semantics_rules,
    split_rules,
    state_rules,
    stop_rules,
    template_rules,
    tensor_rules,
    trainer_base_rules,
    trainer_part_rules,
    trainer_rules,
    trainer_size_rules,
    vocab_rules,
)
from gateup.checks.context import NEEDS, Context
from gateup.checks.finding import SEVERITIES, Finding
from gateup.checks.inputs import Request, Settings, adapter_folder, names_adapter, read_context
from gateup.checks.report import CheckReport
from gateup.checks.rule import Rule, rules_of
from gateup.errors import GateupError, UsageError
from gateup.files.adapter import read_adapter
from gateup.files.checkpoint import Checkpoint, open_model

# Modules whose rules run.
MODULES = (
    adapter_layer_rules,
    adapter_rules,
    adapter_setting_rules,
    adapter_size_rules,
    adapter_target_rules,
    config_rules,
    deep_rules,
    generation_key_rules,
    generation_rules,
    gguf_rope_rules,
    layout_rules,
    name_rules,
    quant_config_rules,
    quant_rules,
    rope_rules,
    rope_scaling_rules,
    same_rules,
    semantics_rules,
    split_rules,
    state_rules,
    stop_rules,
    template_rules,
    tensor_rules,
    trainer_base_rules,
    trainer_part_rules,
    trainer_rules,
    trainer_size_rules,
    vocab_rules,
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
            faults = [context.unmeasurable[n] for n in missing if n in context.unmeasurable]
            if faults:
                failed[rule.id] = faults[0]
            else:
                skipped[rule.id] = "; ".join(dict.fromkeys(map(context.why_not, missing)))
            continue
        try:
            found = rule(context)
        except STUMBLES as error:
            failed[rule.id] = stumbled(error)
            continue
        ran.append(rule.id)
        findings.extend(found)
    findings.sort(key=lambda f: (SEVERITIES.index(f.severity), f.rule))
    return CheckReport(context.spec.name, tuple(findings), tuple(ran), skipped, failed, context)


def stumbled(error: Exception) -> str:
    """What a report says of a rule's exception."""
    text = error.what if isinstance(error, GateupError) else str(error)
    return f"{type(error).__name__}: {text}"


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
    measure: Callable[[Context], Context] | None = None,
) -> CheckReport:
    """What is wrong with `ref`. Arguments as for `gateup.check`, which is this one and `deep`.

    measure  adds to the context what takes reading the weights; None: they are not read
    """
    request = Request(adapter, base, tokenizer, tp, quant, trainer, generation)
    try:
        checkpoint = open_model(ref, base=base)
    except GateupError as error:
        other = _given_base(ref, request)
        if other is None:
            if not _is_there(ref):
                raise
            return refused(str(ref), error)
        # Another model's adapter: rules say more of that than the refusal.
        checkpoint, request = other, replace(request, adapter=ref, base=None)
    context = read_context(checkpoint, request)
    return run_rules(context if measure is None else measure(context))


def _given_base(ref: str | Path, request: Request) -> Checkpoint | None:
    """The base given for an adapter's folder, opened by itself; None where it cannot be."""
    if request.base is None or request.adapter is not None:
        return None
    try:
        if not names_adapter(Path(ref).expanduser()):
            return None
        base = open_model(request.base)
        read_adapter(adapter_folder(Path(ref).expanduser()))
    except (GateupError, RuntimeError):  # ~user without a home
        return None
    return base if base.adapter is None else None


def refused(ref: str, error: GateupError) -> CheckReport:
    """The report of a check that could not begin."""
    return CheckReport(ref, (tensor_rules.unreadable(error),))


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
    asked = name.lower().partition(".")[2] or name.lower()
    near = get_close_matches(name.lower(), by_id, n=3, cutoff=0.85)
    close = list(dict.fromkeys([*near, *(i for i in by_id if i.partition(".")[2] == asked)]))
    close = close or [i for i in by_id if len(asked) > 3 and asked in i][:3]
    raise UsageError(
        f"there is no rule {name!r}",
        expected="an id; gateup check --list prints all",
        remedy="did you mean " + " or ".join(close) + "?" if close else None,
    )
