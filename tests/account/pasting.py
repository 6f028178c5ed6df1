"""A printed `gateup plan` command, planned for as the command line would."""

from __future__ import annotations

import shlex
from dataclasses import fields

import typer

from gateup.account.options import PlanOptions
from gateup.account.plan import Plan, plan
from gateup.cli import app


def pasted(line: str) -> Plan:
    """The plan that the command line makes of `line`, by its own parser."""
    program, verb, *words = shlex.split(line)
    assert (program, verb) == ("gateup", "plan")
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    given = verbs["plan"].make_context("plan", words).params
    (ref,) = given["models"]
    asked = {f.name: given[f.name] for f in fields(PlanOptions)}
    return plan(ref, PlanOptions(**asked), base=given["base"])
