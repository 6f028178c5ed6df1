"""`gateup.check`: the rules over headers and settings, and with deep=True over weights as well."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from gateup.checks import runner
from gateup.checks.context import Context
from gateup.checks.inputs import Settings
from gateup.checks.report import CheckReport
from gateup.errors import UsageError

NEEDED = ("torch", "tokenizers")


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
    deep: bool = False,
) -> CheckReport:
    """What is wrong with `ref`: from headers and settings alone, or from its weights as well.

    >>> import gateup
    >>> gateup.check("smollm2").exit_code
    0

    ref         as for gateup.open: folder, file, adapter folder, preset, "smollm2"
    adapter     an adapter's folder to check against `ref`
    base        of an adapter's folder: its base; otherwise a second model to compare with
    tokenizer   a folder of tokenizer files; default: those beside the model
    tp          tensor-parallel degree to serve at
    quant       format to convert to: "q4_k_m", "awq:128", "fp8:128"
    trainer     a trainer's YAML or JSON, or its settings as a mapping
    generation  a generation_config.json, or its settings as a mapping
    deep        read every weight, and run a short text through the model (needs torch)

    A model that is there and cannot be read gives a report with that one finding. Raises
    GateupError for options that cannot be, and for named files that are not there or cannot be
    read; for deep=True without torch.
    """
    measure: Callable[[Context], Context] | None = None
    if deep:
        missing = [name for name in NEEDED if find_spec(name) is None]
        if missing:
            raise UsageError(
                f"checks that read weights need {' and '.join(missing)}: not installed",
                remedy='pip install "gateup[torch]"',
            )
        from gateup.deep import measure as measuring

        measure = measuring.measure
    return runner.check(
        ref,
        adapter=adapter,
        base=base,
        tokenizer=tokenizer,
        tp=tp,
        quant=quant,
        trainer=trainer,
        generation=generation,
        measure=measure,
    )
