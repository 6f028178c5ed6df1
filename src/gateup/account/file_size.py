"""How large the model's file is: what was opened, or the GGUF that its format would make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateup.account.figure import Figure
from gateup.files.checkpoint import Checkpoint
from gateup.model.quant.formats import StoredTensor
from gateup.model.quant.gguf_file import FIXED_NBYTES, info_nbytes, padded
from gateup.model.quant.mix import kind_of


def file_figures(
    checkpoint: Checkpoint, fmt: str | None, stored: Sequence[StoredTensor]
) -> dict[str, Figure]:
    """`file.bytes` of files that are planned for as they stand; `file.data` and `file.infos` of a
    GGUF still to be made (what its metadata takes depends on the tokenizer); else nothing.
    """
    if fmt is None:
        if checkpoint.file_nbytes is None:
            return {}
        size = Figure(
            checkpoint.file_nbytes, "B", "exact", "size on disk", "", "the files' own sizes"
        )
        return {"file.bytes": size}
    if kind_of(fmt) != "gguf":
        return {}
    n, source = len(stored), "llama.cpp's GGUF format, alignment 32"
    data = sum(padded(t.nbytes) for t in stored)
    infos = FIXED_NBYTES + sum(info_nbytes(t) for t in stored)
    return {
        "file.data": Figure(data, "B", "exact", f"Σ of {n} tensors, padded to 32 B", "", source),
        "file.infos": Figure(infos, "B", "exact", "24 + Σ tensor infos", f"{n} tensors", source),
    }


def file_text(figures: Mapping[str, Figure]) -> str | None:
    """The size in words, in bytes and in GB (10^9); None where there is no file to speak of."""
    if "file.bytes" in figures:
        return f"= {_both(figures['file.bytes'].value)} on disk"
    if "file.data" not in figures:
        return None
    return (
        f"= {_both(figures['file.data'].value)} of tensor data, "
        f"= {figures['file.infos'].value:,} bytes of tensor infos, and metadata (the tokenizer: "
        "1.8 MB for 49,152 tokens)"
    )


def _both(nbytes: float) -> str:
    unit, step = ("GB", 10**9) if nbytes >= 10**9 else ("MB", 10**6)
    return f"{nbytes:,} bytes ({nbytes / step:,.3f} {unit})"
