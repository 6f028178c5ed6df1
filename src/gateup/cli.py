"""The command line: thin verbs over `account` and `checks`, imported when they are used.

Exit codes: 0 fine; 1 the answer is "no" (it does not fit the device that was named, the check
found errors); 2 bad usage or unreadable input.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from gateup import __version__
from gateup.account.options import PlanOptions
from gateup.cli_bench import bench
from gateup.cli_check import CheckCommand, check
from gateup.cli_handbook import handbook
from gateup.cli_lab import lab
from gateup.cli_practice import practice_app
from gateup.cli_run import TOKENS, run
from gateup.errors import GateupError, UsageError

app = typer.Typer(
    name="gateup",
    help="The gated feed-forward network of Llama-family models, known to the byte.",
    no_args_is_help=True,
    add_completion=False,
    # Plain help and plain errors: names from users' files would be read as markup otherwise.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

NO = 1
BROKEN_PIPE = 141  # what a shell reports for a process that SIGPIPE ended: 128 + 13

Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL...",
        help="Folder, config.json, .safetensors, .gguf, adapter folder, preset or smollm2.",
    ),
]


Base = Annotated[str | None, typer.Option("--base", help="The model an adapter folder belongs to.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, and nothing else.")]


@contextmanager
def _reported() -> Iterator[None]:
    """A GateupError becomes one message on stderr and its exit code."""
    if sys.stdout is None:  # closed before we came (>&-): run for the exit code
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    try:
        yield
        sys.stdout.flush()
    except GateupError as error:
        from gateup.account.report.units import printable

        print(f"gateup: {printable(str(error))}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None
    except MemoryError:
        message = "there is not enough memory for this (free some, or lift the process's limit)"
        print(f"gateup: {message}", file=sys.stderr)
        raise typer.Exit(UsageError.exit_code) from None
    except BrokenPipeError:  # the reader (head, less) left
        _drop_output()
        raise typer.Exit(BROKEN_PIPE) from None
    except OSError as error:
        if error.filename is not None:  # not of a stream
            raise
        _drop_output()
        print(f"gateup: the output cannot be written: {error.strerror}", file=sys.stderr)
        raise typer.Exit(UsageError.exit_code) from None


def _drop_output() -> None:
    """Python would complain again when it closes stdout with something left in it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version(asked: bool) -> None:
    if asked:
        print(f"gateup {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


def _print_json(document: object) -> None:
    import json

    # Surrogates from undecodable file names would not encode; ASCII escapes always do.
    print(json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False))


def _plan(
    models: list[str],
    base: str | None,
    as_json: bool,
    html: Path | None,
    explain: bool,
    **asked: Any,
) -> None:
    """Where parameters, bytes and FLOPs go, whether it fits, and what would make it fit."""
    with _reported():
        from gateup.account.plan import plan

        if as_json and explain:
            raise UsageError("--json and --explain together", remedy="--json has every formula")
        options = PlanOptions(**asked)
        plans = [plan(model, options, base=base) for model in models]
        if html is not None:
            from gateup.account.report.html import write_html

            write_html(plans, html)
        if as_json:
            from gateup.account.report.json_report import to_json

            documents = [to_json(p) for p in plans]
            _print_json(documents[0] if len(documents) == 1 else documents)
        else:
            _print_plans(plans, explain, html)
        if any(p.verdict is not None and not p.verdict.fits for p in plans):
            raise typer.Exit(NO)


class _Once(TyperCommand):
    """A command whose options are given once: of two values the last would win without a word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = args[: args.index("--")] if "--" in args else args
        names = [word.partition("=")[0] for word in options if word.startswith("--")]
        for option in self.params:
            given = [name for name in names if name in option.opts]
            if len(given) > 1:
                raise typer.BadParameter(
                    f"{given[-1]} is given {len(given)} times; a plan is of one run: make one plan "
                    "for each value"
                )
        return super().parse_args(ctx, args)


def _print_plans(plans: list[Any], explain: bool, html: Path | None) -> None:
    from gateup.account.report.console import make_console
    from gateup.account.report.tables import render, render_side_by_side

    console = make_console()
    if len(plans) == 1:
        render(plans[0], console)
    else:
        render_side_by_side(plans, console)
    if explain:
        from gateup.account.report.explain import explain as explain_plan

        for p in plans:
            explain_plan(p, console)
    if html is not None:
        console.print(f"page written to {html}")


def _plan_command() -> Any:
    """`_plan` with one command-line option per field of PlanOptions, in that order."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    hints = get_type_hints(PlanOptions)
    own = [
        ("models", Models, inspect.Parameter.empty),
        *(
            (
                f.name,
                Annotated[
                    hints[f.name],
                    typer.Option(
                        *f.metadata["flags"],
                        help=f.metadata["help"],
                        rich_help_panel=f.metadata["panel"],
                        **(TOKENS if f.name == "ctx" else {}),
                    ),
                ],
                f.default,
            )
            for f in fields(PlanOptions)
        ),
        (
            "base",
            Base,
            None,
        ),
        ("as_json", Json, False),
        (
            "html",
            Annotated[Path | None, typer.Option("--html", help="Write one self-contained page.")],
            None,
        ),
        (
            "explain",
            Annotated[
                bool, typer.Option("--explain", help="Each formula, its numbers and its source.")
            ],
            False,
        ),
    ]

    def command(**given: Any) -> None:
        _plan(**given)

    command.__doc__ = _plan.__doc__
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, keyword, annotation=a, default=d) for n, a, d in own]
    )
    command.__annotations__ = {n: a for n, a, _ in own}
    return command


app.command("plan", cls=_Once)(_plan_command())


@app.command(cls=_Once)
def show(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="As for plan.")],
    batch: Annotated[int, typer.Option("--batch", help="Sequences (B).")] = 1,
    seq: Annotated[int, typer.Option("--seq", help="Tokens per sequence (T).", **TOKENS)] = 2048,
    layer: Annotated[
        int | None, typer.Option("--layer", help="The layer to follow (default: the first of all).")
    ] = None,
    quant: Annotated[str | None, typer.Option("--quant", help="Weights in this format.")] = None,
    base: Base = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="Every tensor, not groups.")] = False,
    as_json: Json = False,
) -> None:
    """The model's description, its tensors, and the shapes that flow through one layer."""
    with _reported():
        from gateup.account.show import ShowOptions, show

        asked = ShowOptions(batch=batch, seq=seq, layer=layer, quant=quant)
        shown = show(model, asked, base=base)
        if as_json:
            from gateup.account.report.json_report import shown_to_json

            _print_json(shown_to_json(shown))
        else:
            from gateup.account.report.console import make_console
            from gateup.account.report.shape_flow import render_shown

            render_shown(shown, make_console(), every_tensor=tensors)


@app.command("presets")
def presets_command(as_json: Json = False) -> None:
    """Models known by name: parameters, and the MLP's share of them."""
    with _reported():
        from gateup.account.report.presets import listed, presets_json, render_presets

        if as_json:
            _print_json(presets_json(listed()))
        else:
            from gateup.account.report.console import make_console

            render_presets(listed(), make_console())


app.command("check", cls=CheckCommand)(_reported()(check))
app.command("run")(_reported()(run))
app.command("bench")(_reported()(bench))
app.command("lab")(_reported()(lab))
app.command("handbook")(_reported()(handbook))
app.add_typer(practice_app(_reported()), name="practice")


def main() -> None:
    """Entry point of the `gateup` script and of `python -m gateup`."""
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by the caller: the exit code still answers
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # to the end
            setattr(sys, stream, nowhere)
    app(prog_name="gateup")
