"""The registry: config.json (or GGUF metadata) -> ModelSpec, and names between dialects.

An architecture that is not listed is refused by name; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from gateup.errors import ConfigError, UnknownArchitectureError
from gateup.model.config import Config
from gateup.model.families import (
    classic,
    deepseek,
    gemma,
    gpt_oss,
    llama,
    llama4,
    mistral,
    mixtral,
    olmo2,
    olmoe,
    per_layer,
    phi3,
    qwen,
    qwen_moe,
)
from gateup.model.families.base import Family, GGUFTensor, Names
from gateup.model.spec import ModelSpec, TensorSpec

__all__ = [
    "FAMILIES",
    "Family",
    "GGUFTensor",
    "Names",
    "build_spec",
    "family_of",
    "find_family",
    "gguf_tensors",
]

FAMILIES: dict[str, Family] = {
    f.model_type: f
    for f in (
        *llama.FAMILIES,
        *mistral.FAMILIES,
        *qwen.FAMILIES,
        *gemma.FAMILIES,
        *phi3.FAMILIES,
        *olmo2.FAMILIES,
        *per_layer.FAMILIES,
        *classic.FAMILIES,
        *mixtral.FAMILIES,
        *qwen_moe.FAMILIES,
        *deepseek.FAMILIES,
        *gpt_oss.FAMILIES,
        *llama4.FAMILIES,
        *olmoe.FAMILIES,
    )
}


def family_of(spec: ModelSpec) -> Family:
    return FAMILIES[spec.family]


def find_family(cfg: Config) -> Family:
    """By `architectures[0]` first (it names the class), by `model_type` where that is absent."""
    architectures = cfg.raw("architectures", default=[])
    model_type = cfg.raw("model_type")
    if not isinstance(architectures, list) or not all(isinstance(a, str) for a in architectures):
        raise cfg.fault("architectures", architectures, "a list of class names")
    for arch in architectures[:1]:
        for family in FAMILIES.values():
            if arch in family.architectures:
                return family
    if not architectures and isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    what = architectures[0] if architectures else model_type
    if what is None:
        raise cfg.missing("architectures", "model_type")
    raise UnknownArchitectureError(
        f"architecture {what!r} is not one gateup knows",
        where=cfg.where,
        expected="one of "
        + ", ".join(sorted(a for f in FAMILIES.values() for a in f.architectures)),
    )


def build_spec(values: Mapping[str, Any], *, where: str, name: str) -> ModelSpec:
    """ModelSpec from a config.json's content. `where` goes into errors, `name` into reports.

    Raises UnknownArchitectureError, ConfigError.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"the config is a {type(values).__name__}, not an object", where=where)
    cfg = Config(values, where)
    return find_family(cfg).build(cfg, name)


def gguf_tensors(spec: ModelSpec) -> list[GGUFTensor]:
    """The tensors of the GGUF that llama.cpp's converter makes of this model, in spec order.

    Raises UnknownArchitectureError where llama.cpp has no architecture for the family.
    """
    family = family_of(spec)
    if family.gguf_arch is None:
        raise UnknownArchitectureError(
            f"{spec.architecture} has no GGUF architecture in llama.cpp", where=spec.name
        )
    out: list[GGUFTensor] = []
    for row in spec.rows:
        special = family.gguf_rule(spec, row) if family.gguf_rule else None
        out.extend(special if special is not None else [_default_gguf(family, row)])
    if family.gguf_extra:
        out.extend(family.gguf_extra(spec))
    return out


def _default_gguf(family: Family, row: TensorSpec) -> GGUFTensor:
    template = family.names[row.role].gguf
    if template is None:
        raise AssertionError(f"{family.model_type}: role {row.role} needs a GGUF name or a rule")
    name = template.replace("{i}", str(row.layer))
    ne = tuple(reversed(row.shape)) + ((row.copies,) if row.copies > 1 else ())
    assert prod(ne) == row.params
    return GGUFTensor(name, ne, (row,), row.params)
