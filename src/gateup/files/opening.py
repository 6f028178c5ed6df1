"""Open a file safely, and say what it really is when it is not what its name claims."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import BinaryIO

from gateup.errors import ConfigError, HeaderError, InputError

CONVERT_REMEDY = (
    "convert it on a machine you trust it on: load it with transformers "
    "(AutoModelForCausalLM.from_pretrained(folder)) and write it back with "
    "model.save_pretrained(out), which writes safetensors"
)
CONVERT_ADAPTER = (
    "convert it on a machine you trust it on: load it with peft "
    "(PeftModel.from_pretrained(base, folder)) and write it back with "
    "model.save_pretrained(out), which writes adapter_model.safetensors"
)

# First bytes of files that people hand over by mistake: (prefix, what it is, remedy).
FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (
        b"version https://git-lfs",
        "a Git LFS pointer, not the file it stands for",
        "run `git lfs pull` in the repository, or fetch the file with `hf download`",
    ),
    (b"PK\x03\x04", "a PyTorch pickle archive", CONVERT_REMEDY),
    (b"\x80\x02", "a pickle", CONVERT_REMEDY),
    (b"<!DOCTYPE", "an HTML page", "download the file itself, not the page that shows it"),
    (b"<html", "an HTML page", "download the file itself, not the page that shows it"),
    (b"GGUF", "a GGUF file", "give it a name that ends in .gguf"),
    (
        b"lmgg",
        "a GGML file from before GGUF",
        "convert the original model with llama.cpp's convert_hf_to_gguf.py",
    ),
    (
        b"tjgg",
        "a GGJT file from before GGUF",
        "convert the original model with llama.cpp's convert_hf_to_gguf.py",
    ),
    (
        b"fmgg",
        "a GGMF file from before GGUF",
        "convert the original model with llama.cpp's convert_hf_to_gguf.py",
    ),
)


def open_regular(path: Path) -> tuple[BinaryIO, int]:
    """The file opened for reading, and its size in bytes. Raises InputError.

    Devices, pipes and folders are refused before they are opened: a pipe would block for ever.
    """
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            kind = "a folder" if stat.S_ISDIR(info.st_mode) else "a device or pipe"
            raise InputError(f"{path.name} is {kind}, not a file", where=str(path))
        return path.open("rb"), info.st_size
    except OSError as e:
        raise InputError(
            f"{path.name} cannot be read: {e.strerror or e}", where=str(path)
        ) from None
    except ValueError as e:  # a NUL character in the name
        raise InputError(f"{path.name!r} is not a file name: {e}") from None


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The whole file. Raises InputError (unreadable), ConfigError (more than `max_bytes`)."""
    handle, size = open_regular(path)
    with handle:
        if size > max_bytes:
            raise ConfigError(
                f"{path.name} has {size:,} bytes",
                where=str(path),
                expected=f"at most {max_bytes:,}",
            )
        return handle.read(max_bytes + 1)


def foreign(start: bytes) -> tuple[str, str] | None:
    """(what the file is, remedy), by its first bytes, where they are well known."""
    for prefix, what, remedy in FOREIGN:
        if start.startswith(prefix):
            return what, remedy
    return None


def refuse_foreign(path: Path, start: bytes) -> None:
    """Raise HeaderError where the file is, by its first bytes, something else."""
    found = foreign(start)
    if found:
        what, remedy = found
        raise HeaderError(f"{path.name} is {what}", where=str(path), remedy=remedy)
