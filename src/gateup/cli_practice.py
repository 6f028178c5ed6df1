"""`gateup practice`: exercises in the shell, judged by the same judge as in the browser."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gateup.practice.exercise import Exercise

NOT_PASSED = 1

Which = Annotated[str, typer.Argument(metavar="N", help="Number or name of an exercise.")]
Folder = Annotated[Path, typer.Option("--dir", help="Where your files are.")]
Lang = Annotated[str | None, typer.Option("--lang", help="en or zh (default: as $LANG).")]
Force = Annotated[bool, typer.Option("--force", help="Begin again; the old file becomes .bak.")]

_HERE = Path("gateup-practice")


def list_exercises(lang: Lang = None) -> None:
    """All exercises, and how far you are."""
    from gateup.account.report.console import make_console
    from gateup.practice.exercise import exercises
    from gateup.practice.show import render_list

    render_list(make_console(), exercises(), _progress().records(), language_of(lang))


def start(which: Which, folder: Folder = _HERE, force: Force = False, lang: Lang = None) -> None:
    """The problem, and a file to begin with. Nothing of yours is overwritten."""
    _begin(which, folder, force, lang)


def judge_file(
    which: Which,
    folder: Folder = _HERE,
    file: Annotated[
        Path | None, typer.Option("--file", help="Judge this file, not the one in --dir.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="The cases of an earlier verdict.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The verdict as JSON.")] = False,
    lang: Lang = None,
) -> None:
    """Judge your file on held-out cases. Exit code 1: it does not pass yet."""
    from gateup.practice.judge import shared
    from gateup.practice.workspace import code_path, read

    exercise, language = _find(which), language_of(lang)
    source = read(file or code_path(folder, exercise))
    progress = _progress()
    seen = progress.of(exercise.name).hints
    verdict = shared().judge(exercise, source, language, seed=seed, hints_seen=seen)
    if seed is None:  # cases that are known beforehand prove nothing
        progress.tried(exercise.name, verdict.passed)
    if as_json:
        import json

        print(json.dumps(verdict.to_dict(), indent=2, allow_nan=False))
    else:
        from gateup.account.report.console import line, make_console
        from gateup.practice import messages
        from gateup.practice.show import render_verdict

        render_verdict(make_console(), verdict, exercise.number, language)
        if verdict.passed and seed is not None:
            line(make_console(), messages.NOT_COUNTED.in_language(language))
    if not verdict.passed:
        raise typer.Exit(NOT_PASSED)


def hint(which: Which, lang: Lang = None) -> None:
    """One hint more, after those you have seen."""
    from gateup.account.report.console import line, make_console
    from gateup.practice import messages

    exercise, language = _find(which), language_of(lang)
    seen = _progress().reveal_hint(exercise.name, len(exercise.hints)).hints
    words = messages.HINT.in_language(language)
    for i, text in enumerate(exercise.hints[:seen], 1):
        line(make_console(), words.format(i, len(exercise.hints), text.in_language(language)))


def solution(which: Which) -> None:
    """A good answer. That you have seen it is noted."""
    exercise = _find(which)
    _progress().show_solution(exercise.name)
    print(exercise.solution(), end="")


def reset(which: Which, folder: Folder = _HERE, force: Force = False, lang: Lang = None) -> None:
    """Begin an exercise again: a fresh file, no hints seen, not passed."""
    exercise = _begin(which, folder, force, lang)
    _progress().forget(exercise.name)


def progress(
    lang: Lang = None,
    as_json: Annotated[bool, typer.Option("--json", help="The records as JSON.")] = False,
) -> None:
    """What you have passed and tried."""
    from dataclasses import asdict

    from gateup.account.report.console import line, make_console
    from gateup.practice import messages
    from gateup.practice.exercise import exercises
    from gateup.practice.show import render_list

    kept, language = _progress(), language_of(lang)
    records = kept.records()
    if as_json:
        import json

        print(json.dumps({name: asdict(record) for name, record in records.items()}, indent=2))
        return
    console = make_console()
    render_list(console, exercises(), records, language, begun_only=True)
    line(console, messages.KEPT.in_language(language).format(kept.path), "dim")


# "test" is not the function's name: test runners would take it for theirs.
COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_exercises,
    "start": start,
    "test": judge_file,
    "hint": hint,
    "solution": solution,
    "reset": reset,
    "progress": progress,
}


def practice_app(reported: Callable[[Callable[..., None]], Callable[..., None]]) -> typer.Typer:
    """The commands, each wrapped so that its GateupErrors are printed."""
    app = typer.Typer(
        help="Exercises from formula to kernel, judged on this machine.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    for name, command in COMMANDS.items():
        app.command(name)(reported(command))
    return app


def _find(which: str) -> Exercise:
    from gateup.practice.exercise import find

    return find(which)


def _progress() -> Any:
    """The learner's progress; what is wrong with its file is said on stderr."""
    from gateup.practice.progress import Progress

    kept = Progress()
    kept.records()
    if kept.problem:
        print(f"gateup: {kept.problem}", file=sys.stderr)
    return kept


def language_of(asked: str | None) -> str:
    """--lang, or what the environment asks for: Chinese or English."""
    if asked is None:
        names = ("LC_ALL", "LC_MESSAGES", "LANG")
        locale = next((os.environ[name] for name in names if os.environ.get(name)), "")
        return "zh" if locale.lower().startswith("zh") else "en"
    if asked not in ("en", "zh"):
        from gateup.errors import UsageError

        raise UsageError(f"no language {asked!r}", expected="en, zh")
    return asked


def _begin(which: str, folder: Path, force: bool, lang: str | None) -> Exercise:
    """Writes the learner's file; where it exists a person at a terminal is asked."""
    from gateup.account.report.console import make_console, verbatim
    from gateup.practice import messages, workspace

    exercise, language = _find(which), language_of(lang)
    path = workspace.code_path(folder, exercise)
    if path.exists() and not force and sys.stdin.isatty():
        force = typer.confirm(messages.OVERWRITE.in_language(language).format(path))
    workspace.start(folder, exercise, language, force=force)
    print(exercise.problem(language))
    words = messages.WRITTEN.in_language(language).format(path, exercise.number)
    verbatim(make_console(), words, "bold")
    return exercise
