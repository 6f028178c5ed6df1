"""What a split or a quantisation is asked of: the tensors with the blocks they are stored in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateup.checks.context import Context
from gateup.errors import GateupError
from gateup.model.quant.formats import StoredTensor, stored_as
from gateup.model.quant.hf_formats import converted
from gateup.model.quant.mix import kind_of
from gateup.model.quant.mix import stored as stored_in
from gateup.model.spec import ModelSpec

IN_FILE = "the file's types"


@dataclass(frozen=True)
class Target:
    """What is split: the tensors with their blocks, and how that is known.

    fmt     "awq:128", "q4_k_m", "bf16", or the label of a GGUF
    stored  one per tensor; only `type` and `row` are looked at
    source  "--quant awq:128", "config.json, field quantization_config", "shapes"
    """

    fmt: str
    stored: tuple[StoredTensor, ...]
    source: str


def declared_quant(config: Mapping[str, Any]) -> str | None:
    """The format that quantization_config stands for, as --quant names it; None: none known."""
    settings = config.get("quantization_config")
    if not isinstance(settings, Mapping):
        return None
    method, group = settings.get("quant_method"), settings.get("group_size")
    if method in ("awq", "gptq") and type(group) is int and 8 <= group < 100000:
        return f"{method}:{group}"
    block = settings.get("weight_block_size")
    if method == "fp8" and isinstance(block, list) and block and type(block[0]) is int:
        return f"fp8:{block[0]}" if 0 < block[0] < 100000 else None
    return None


def target(context: Context) -> Target:
    """The format asked for, or declared, or that of the files; plain weights where none is."""
    spec = context.spec
    fmt = context.quant
    source = f"--quant {fmt}"
    if fmt is None:
        fmt = declared_quant(spec.config)
        source = f"{context.source('config')}, field quantization_config"
    if fmt is None and context.checkpoint.kind == "gguf" and context.checkpoint.stored:
        return Target(context.checkpoint.label, context.checkpoint.stored, IN_FILE)
    if fmt is not None:
        try:
            return Target(fmt, _stored(spec, fmt.lower()), source)
        except GateupError:
            pass  # what cannot be stored at all is quant.group's and quant.rows' to report
    return Target(spec.dtype or "bf16", stored_as(spec.rows, "bf16"), "shapes")


def _stored(spec: ModelSpec, fmt: str) -> tuple[StoredTensor, ...]:
    """As `mix.stored`, but without refusing rows that are no whole number of groups."""
    if kind_of(fmt) != "hf":
        return stored_in(spec, fmt)
    return tuple(
        StoredTensor(r.name, r.shape, fmt if converted(r, fmt) else "bf16", 0, r.params, r)
        for r in spec.rows
    )


def is_gguf(aim: Target) -> bool:
    return aim.source == IN_FILE or (aim.source != "shapes" and kind_of(aim.fmt) == "gguf")
