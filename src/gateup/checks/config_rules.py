"""Config against weights: what the files are, and whether they say what config.json says."""

from __future__ import annotations

from collections.abc import Iterable

from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding
from gateup.checks.rule import rule
from gateup.errors import GateupError


def unreadable(error: GateupError) -> Finding:
    """The finding that stands for a file that cannot be read."""
    return Finding(
        rule="files.readable",
        severity="error",
        title=error.what,
        evidence=(Evidence(error.where or "", error.what, error.expected or ""),),
        cause="The file does not hold what its name promises, or not all of it.",
        remedy=error.remedy or "",
    )


@rule("files.readable", "Every file can be read as what it claims to be")
def readable(context: Context) -> Iterable[Finding]:
    """Headers are read strictly: lengths against the file's size, tensors against each other, JSON
    as the standard has it. Where the model itself fails, nothing else can be said about it: that
    is the only finding, and the exit code is 2, as for any unreadable input. A tokenizer or a
    generation_config.json beside the model that cannot be read is an error like others.

    Example: a download that stopped.

        model.safetensors is truncated: its tensors end at byte 988,097,824, the file at
        412,090,368

    Truncation is offset + size against the file's length and nothing else. Fetch the file again.
    """
    for error in context.unreadable:
        yield unreadable(error)
