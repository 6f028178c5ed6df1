"""Runs the chapter's experiments and keeps what they print and draw.

In a process of their own: they take seconds, which a server cannot spend, and may import torch. A
cell works as in a notebook: what is printed is shown, and so is the value of a last expression.
"""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

from gateup.errors import GateupError
from gateup.lab.handbook.source import Code, chapter

# They take 5 s on one core; a machine may be ten times slower and busy.
SECONDS = 300


class ExperimentError(GateupError):
    """The experiments did not run to their end on this machine."""


@dataclass(frozen=True, slots=True)
class Output:
    """What one experiment printed, and what it drew (HTML; "" where it drew nothing)."""

    text: str
    drawing: str = ""


def experiments() -> list[Code]:
    """In the chapter's order, which is the order they build on each other in."""
    return [b for s in chapter("en") for b in s.blocks if isinstance(b, Code)]


@cache
def outputs() -> Mapping[str, Output]:
    """Experiment -> output, run once per process. Raises ExperimentError."""
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ExperimentError(
            f"the handbook's experiments did not end within {SECONDS} seconds",
            remedy="gateup handbook --notebook FILE.ipynb, to run them one by one",
        ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ExperimentError(
            f"the handbook's experiments stopped: {last}",
            remedy="gateup handbook --notebook FILE.ipynb, to run them one by one",
        )
    return {name: Output(**fields) for name, fields in json.loads(done.stdout).items()}


def run(cells: list[Code]) -> dict[str, Output]:
    """Run the cells in this process, in one namespace."""
    namespace: dict[str, Any] = {}
    return {cell.name: _run(cell, namespace) for cell in cells}


def _run(cell: Code, namespace: dict[str, Any]) -> Output:
    written = io.StringIO()
    namespace["print"] = partial(print, file=written)
    tree = ast.parse(cell.source, cell.name)
    last = tree.body[-1] if tree.body else None
    shown = None
    if isinstance(last, ast.Expr) and not _prints(last):
        tree.body.pop()
        exec(compile(tree, cell.name, "exec"), namespace)
        shown = eval(compile(ast.Expression(last.value), cell.name, "eval"), namespace)
    else:
        exec(compile(tree, cell.name, "exec"), namespace)
    draw = getattr(shown, "_repr_html_", None)
    drawing = draw() if draw is not None else ""
    return Output(written.getvalue(), drawing)


def _prints(node: ast.Expr) -> bool:
    call = node.value
    return (
        isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"
    )


if __name__ == "__main__":
    results = {name: asdict(output) for name, output in run(experiments()).items()}
    sys.stdout.buffer.write(json.dumps(results).encode())
