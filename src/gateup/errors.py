"""What users read when something is wrong: what, where, what was expected, what to do.

Every error a user can cause derives from `GateupError`, so the command line can print it whole
and exit with its code; anything else that escapes is a fault of ours and shows its traceback.
"""

from __future__ import annotations


class GateupError(Exception):
    """One clear message. `where` names the file and the field, `expected` what would be right.

    `exit_code` is what the command line returns: 2 for bad usage or unreadable input.
    """

    exit_code = 2

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        expected: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.what = what
        self.where = where
        self.expected = expected
        self.remedy = remedy
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.what]
        for label, text in (
            ("where", self.where),
            ("expected", self.expected),
            ("remedy", self.remedy),
        ):
            if text:
                lines.append(f"  {label}: {text}")
        return "\n".join(lines)


class UsageError(GateupError):
    """An option or argument that cannot be taken as it stands."""


class InputError(GateupError):
    """A file or folder that cannot be read as what it claims to be."""


class ConfigError(InputError):
    """A config.json (or GGUF metadata) field that is missing, of a wrong type or out of range."""


class HeaderError(InputError):
    """A safetensors or GGUF header that is truncated, corrupt or inconsistent with its file."""


class TruncatedError(HeaderError):
    """A file that ends before its tensors do.

    Of one file: `tensors` it describes, names of the `cut` ones in the order of their data, bytes
    that are there (`have`) and that offset + size of the last tensor asks for (`need`).
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        remedy: str | None = None,
        have: int,
        need: int,
        tensors: int,
        cut: tuple[str, ...],
    ) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.have = have
        self.need = need
        self.tensors = tensors
        self.cut = cut


class UnknownArchitectureError(InputError):
    """An architecture gateup has no description of. Nothing is guessed."""
