"""Verdicts, lists and progress for the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from gateup.account.report.console import cell, columns, heading, line, put, verbatim
from gateup.practice import messages
from gateup.practice.compare import Leaf
from gateup.practice.exercise import Exercise, Text
from gateup.practice.progress import Record
from gateup.practice.server import OUTPUT_LIMIT
from gateup.practice.verdict import CaseResult, Verdict

_DETAILED = 3  # failed cases that are told in full
_PRINTED = 20  # lines of the learner's own output
_WIDTH = 200  # characters of one of them


def render_list(
    console: Console,
    all_of_them: Sequence[Exercise],
    records: Mapping[str, Record],
    lang: str,
    *,
    begun_only: bool = False,
) -> None:
    """One row an exercise, or one for each of which there is a record."""
    heads = (messages.EXERCISE, messages.TITLE, messages.LEVEL, messages.NEEDS, messages.STATE)
    table = columns(console, "", *(head.in_language(lang) for head in heads), left=6)
    for exercise in all_of_them:
        if begun_only and exercise.name not in records:
            continue
        table.add_row(
            cell(f"{exercise.number:2d}"),
            cell(exercise.name),
            cell(exercise.title.in_language(lang)),
            cell(str(exercise.level)),
            cell(exercise.needs),
            cell(state(records.get(exercise.name, Record()), lang)),
        )
    put(console, table, drop=(4, 3))
    done = sum(1 for e in all_of_them if records.get(e.name, Record()).passed)
    console.print()
    line(console, messages.COUNT.in_language(lang).format(done, len(all_of_them)), "bold")


def state(record: Record, lang: str) -> str:
    """A record in words; nothing for an exercise never tried."""
    words = ""
    if record.passed:
        words = messages.DONE.in_language(lang)
    elif record.attempts:
        words = messages.TRIED.in_language(lang).format(record.attempts)
    if record.hints:
        words += messages.WITH_HINTS.in_language(lang).format(record.hints)
    if record.solution_seen:
        words += messages.WITH_SOLUTION.in_language(lang)
    return words.lstrip(",， ")


def render_verdict(console: Console, verdict: Verdict, number: int, lang: str) -> None:
    """Cases in a table, what is wrong with the first that failed, the way on, the guards."""

    def say(text: Text, *values: object, style: str = "", indent: int = 0) -> None:
        line(console, text.in_language(lang).format(*values), style, indent)

    table = columns(
        console, *(t.in_language(lang) for t in (messages.CASE, messages.RESULT, messages.TIME))
    )
    table.columns[1].justify = "left"
    for case in verdict.cases:
        status = messages.STATUS[case.status].in_language(lang)
        if case.compared is not None and case.compared.self_reported:
            status += f" ({messages.SELF_REPORTED.in_language(lang)})"
        style = "green" if case.passed else "red"
        table.add_row(cell(case.name), cell(status, style), cell(f"{case.seconds * 1e3:.1f}"))
    put(console, table)
    for case in verdict.different_failures()[:_DETAILED]:
        _render_failure(console, case, lang)
    if verdict.output:
        heading(console, messages.PRINTED.in_language(lang))
        for printed in verdict.output.splitlines()[:_PRINTED]:
            verbatim(console, printed[:_WIDTH], indent=2)
        if verdict.output_cut:
            say(messages.CUT, OUTPUT_LIMIT >> 10, indent=2)
    console.print()
    if verdict.passed:
        say(messages.PASSED_ALL, len(verdict.cases), verdict.seconds, style="bold green")
    else:
        passed = sum(case.passed for case in verdict.cases)
        say(messages.FAILED, passed, len(verdict.cases), style="bold red")
        say(messages.AGAIN, verdict.seed)
        if verdict.hint:
            say(messages.SEE_HINT, number)
    _render_guards(console, verdict, lang)


def _render_guards(console: Console, verdict: Verdict, lang: str) -> None:
    between = messages.SEMICOLON.in_language(lang)
    inside = between.join(g.label for g in verdict.guards if g.in_force)
    outside = between.join(f"{g.label} ({g.reason})" for g in verdict.guards if not g.in_force)
    console.print()
    used = messages.USAGE.in_language(lang).format(verdict.cpu_seconds, verdict.peak_mib)
    line(console, used, "dim")
    line(console, messages.IN_FORCE.in_language(lang).format(inside), "dim")
    if outside:
        line(console, messages.NOT_IN_FORCE.in_language(lang).format(outside), "dim")


def _render_failure(console: Console, case: CaseResult, lang: str) -> None:
    said = messages.STATUS[case.status].in_language(lang)
    heading(console, case.name + messages.COLON.in_language(lang) + said)
    if case.message:
        line(console, case.message, "yellow", indent=2)
    for told in case.lines:
        place = messages.LINE.in_language(lang).format(told.number)
        verbatim(console, f"{place}, {told.function}: {told.text}".replace(", :", ":"), indent=2)
    if case.error:
        line(console, case.error, indent=2)
    if case.compared is not None:
        for words in compared_in_words(case.compared, lang):
            line(console, words, indent=2)


def compared_in_words(leaf: Leaf, lang: str) -> list[str]:
    """What a comparison found, a line each: where, shapes, dtypes, errors."""

    def said(text: Text, *values: object) -> str:
        return text.in_language(lang).format(*values)

    words = [said(messages.WHERE, leaf.where)] if leaf.where else []
    if leaf.status == "wrong shape":
        words.append(
            said(messages.SHAPES, list(leaf.shape_got or ()), list(leaf.shape_expected or ()))
        )
    elif leaf.status == "wrong dtype":
        words.append(said(messages.DTYPES, leaf.dtype_got, leaf.dtype_expected))
    if leaf.nan:
        words.append(said(messages.NANS, leaf.nan))
    if leaf.max_abs is not None and leaf.max_rel is not None and leaf.status != "wrong dtype":
        words.append(said(messages.ERRORS, leaf.max_abs, leaf.max_rel))
    if leaf.index is not None and leaf.tolerance is not None and leaf.status != "wrong dtype":
        words.append(said(messages.AT, list(leaf.index), leaf.got, leaf.expected, leaf.tolerance))
    elif leaf.got or leaf.expected:
        words.append(said(messages.VALUES, leaf.got, leaf.expected))
    return words
