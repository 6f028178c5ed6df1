"""`gateup check`: the rules over one model, and what there is to know about the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from gateup.errors import GateupError, UsageError

if TYPE_CHECKING:
    from gateup.checks.report import CheckReport

Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, and nothing else.")]


class CheckCommand(TyperCommand):
    """`--explain` without its rule becomes an empty one, whose answer names --list."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given: list[str] = []
        for i, word in enumerate(args):
            given.append(word)
            if word == "--explain" and all(w.startswith("--") for w in args[i + 1 : i + 2]):
                given.append("")
        return super().parse_args(ctx, given)


def check(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="As for plan.")] = None,
    adapter: Annotated[
        str | None, typer.Option("--adapter", help="An adapter's folder to check against MODEL.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option("--base", help="An adapter folder's base, or a model to compare with."),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="Folder of the tokenizer's files.")
    ] = None,
    tp: Annotated[
        int | None, typer.Option("--tp", help="Tensor-parallel ranks to serve on.")
    ] = None,
    quant: Annotated[
        str | None, typer.Option("--quant", help="Format to convert to (q4_k_m, awq:128, fp8:128).")
    ] = None,
    trainer: Annotated[
        str | None,
        typer.Option("--trainer", help="A trainer's YAML or JSON, or trainer_state.json."),
    ] = None,
    generation: Annotated[
        str | None, typer.Option("--generation", help="A generation_config.json.")
    ] = None,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Read every weight, and run a short text through the model."),
    ] = False,
    list_rules: Annotated[bool, typer.Option("--list", help="Print all rules.")] = False,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="RULE", help="Teach one rule.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What is wrong with a model, its adapter or its settings, why, and what to do about it."""
    if list_rules or explain is not None:
        _print_rules(model, explain, as_json)
        return
    try:
        report = _report(
            model,
            adapter=adapter,
            base=base,
            tokenizer=tokenizer,
            tp=tp,
            quant=quant,
            trainer=trainer,
            generation=generation,
            deep=deep,
        )
    except GateupError as error:
        if as_json:
            from gateup.checks.runner import refused

            _print_json(refused(model or "", error).to_dict())
        raise
    _print_json(report.to_dict()) if as_json else report.print()
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _report(model: str | None, trainer: str | None, **asked: Any) -> CheckReport:
    """The check of MODEL; of the model that the trainer's file names where there is none."""
    if model is None and trainer is not None:
        from gateup.checks.inputs import named_model

        model = named_model(trainer)
    if model is None:
        raise UsageError(
            "no MODEL was given",
            expected="gateup check MODEL",
            remedy="gateup check --list prints the rules, --explain RULE teaches one",
        )
    from gateup.deep.check import check as run

    return run(model, trainer=trainer, **asked)


def _print_rules(model: str | None, one: str | None, as_json: bool) -> None:
    """All rules in a list, or one in full. UsageError where a model is named beside."""
    if model is not None:
        raise UsageError("--list and --explain are about the rules, not about a model")
    if one == "":
        raise UsageError(
            "--explain needs the id of a rule",
            expected="gateup check --explain config.tied",
            remedy="gateup check --list prints all ids",
        )
    from gateup.account.report.console import make_console
    from gateup.checks.report import render_list, render_rule, rules_to_json
    from gateup.checks.runner import RULES, find_rule

    rules = RULES if one is None else (find_rule(one),)
    if as_json:
        _print_json(rules_to_json(rules))
    elif one is None:
        render_list(rules, make_console())
    else:
        render_rule(rules[0], make_console())


def _print_json(document: object) -> None:
    import json

    # Surrogates from undecodable file names would not encode; ASCII escapes always do.
    print(json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False))
