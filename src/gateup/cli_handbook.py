"""`gateup handbook`: the chapter as text, as a notebook to run, as a page to print."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from gateup.errors import UsageError

# What formulas and Markdown become HTML with; the text and the notebook need neither.
NEEDED = ("latex2mathml", "markdown2")


def handbook(
    lang: Annotated[
        str | None, typer.Option("--lang", help="en or zh (default: as $LANG).")
    ] = None,
    notebook: Annotated[
        Path | None, typer.Option("--notebook", help="Write a Jupyter notebook to this file.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Run the experiments and write one page to this file."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """One chapter on the gated feed-forward network, every number in it computed."""
    from gateup.cli_practice import language_of

    language = language_of(lang)
    if notebook is None and html is None:
        from gateup.lab.handbook.markdown import document

        print(document(language), end="")
        return
    from gateup.lab.handbook.files import refuse, write

    if notebook is not None and html is not None and _same(notebook, html):
        raise UsageError(
            f"--notebook and --html name one file, {html}", remedy="two names, or one of the two"
        )
    for path in (notebook, html):
        if path is not None:
            refuse(path, force=force)  # before seconds are spent on its content
    if notebook is not None:
        from gateup.lab.handbook.notebook import notebook as as_notebook

        write(notebook, as_notebook(language))
        print(notebook)
    if html is not None:
        missing = [name for name in NEEDED if find_spec(name) is None]
        if missing:
            raise UsageError(
                f"the page needs {' and '.join(missing)}, not installed here",
                remedy='pip install "gateup[lab]"',
            )
        from gateup.lab.handbook.printable import page

        write(html, page(language))
        print(html)


def _same(a: Path, b: Path) -> bool:
    """Whether both are one file, which need not be there: by links, dots or another spelling."""
    return a.resolve() == b.resolve() or (a.exists() and b.exists() and a.samefile(b))
