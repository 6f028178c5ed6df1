"""`gateup lab`: checks that its packages are there, then serves."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from gateup.errors import UsageError

NEEDED = ("nicegui", "latex2mathml")


def lab(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="A model to begin with, as for plan.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Port on 127.0.0.1 (8765; 0: any free one).")
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Look at the block, change it and practise, in the browser; nothing leaves this machine."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the lab needs {' and '.join(missing)}, which {'are' if missing[1:] else 'is'} not "
            "installed",
            remedy='pip install "gateup[lab]"',
        )
    from gateup.lab.server import serve

    serve(model, port=port, browser=browser)
