"""The Python face of `gateup plan`: a plan that can print itself and turn into JSON or a page."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from gateup.account.options import PlanOptions
from gateup.account.plan import Plan
from gateup.account.plan import plan as make_plan


class Answer(Plan):
    """A Plan with its reports. `figures["params.total"].value` and the like are the raw numbers."""

    def print(self, *, explain: bool = False) -> None:
        """The tables of `gateup plan` on stdout; with `explain`, every formula after them."""
        from gateup.account.report.explain import explain as explain_plan
        from gateup.account.report.tables import make_console, render

        console = make_console()
        render(self, console)
        if explain:
            explain_plan(self, console)

    def __str__(self) -> str:
        """The tables as plain text."""
        from gateup.account.report.tables import make_console, render

        text = io.StringIO()
        render(self, make_console(text))
        return text.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """The document of `gateup plan --json` (schema gateup.plan/1)."""
        from gateup.account.report.json_report import to_json

        return to_json(self)

    def to_html(self, path: str | Path | None = None) -> str:
        """The page of `gateup plan --html`, also written to `path` where one is given."""
        from gateup.account.report.html import to_html, write_html

        if path is not None:
            write_html([self], Path(path))
        return to_html([self])


def plan(
    ref: str | Path,
    options: PlanOptions | None = None,
    *,
    base: str | None = None,
    **changes: Any,
) -> Answer:
    """Where `ref`'s parameters, bytes and FLOPs go, whether it fits, what would make it fit.

    >>> import gateup
    >>> answer = gateup.plan("llama-3-8b", quant="q4_k_m", ctx=32768)
    >>> answer.figures["bytes.total"].value
    4912898048

    ref      folder, config.json, .safetensors, .gguf, adapter folder, preset name, "smollm2"
    options  a PlanOptions; `changes` are its fields, named as the command line's options are
             (execution for --exec): quant, ctx, batch, kv, device, engine, tp, train, rank, …
    base     the model that an adapter folder belongs to, where the folder does not say

    Raises gateup.errors.GateupError for what cannot be read or cannot be.
    """
    return Answer(**vars(make_plan(ref, options, base=base, **changes)))
