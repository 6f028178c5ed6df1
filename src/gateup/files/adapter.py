"""PEFT adapter folders: adapter_config.json and the header of adapter_model.safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from gateup.errors import InputError
from gateup.files.config_json import read_json
from gateup.files.header import TensorHeader
from gateup.files.opening import CONVERT_ADAPTER
from gateup.files.safetensors import read_safetensors
from gateup.model.config import Config

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"

# PEFT puts this before the base model's own module names.
PREFIX = "base_model.model."
MAX_RANK = 65_536


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter as its folder describes it.

    base             base_model_name_or_path, None where the config does not say
    alpha            lora_alpha; the scale is alpha/rank, alpha/√rank with use_rslora
    target_modules   names (matched as endings), a regular expression or "all-linear" as one
                     string, or None: left to PEFT's table for the architecture
    rank_pattern     module name or regular expression -> rank, where it differs
    modules_to_save  modules trained whole and stored with the adapter
    tensors          what its file stores; `canonical` is the name without PEFT's prefix
    params, nbytes   of those tensors
    types            key of FORMATS -> parameters stored in it
    """

    path: Path
    base: str | None
    rank: int
    alpha: float
    use_rslora: bool
    target_modules: tuple[str, ...] | str | None
    tensors: tuple[TensorHeader, ...]
    params: int
    nbytes: int
    use_dora: bool = False
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    modules_to_save: tuple[str, ...] = ()
    types: Mapping[str, int] = field(default_factory=dict)


def read_adapter(folder: Path) -> Adapter:
    """The adapter in a folder. Raises InputError, ConfigError, HeaderError."""
    config_path = folder / CONFIG
    cfg = Config(read_json(config_path), str(config_path))
    kind = cfg.text("peft_type", default="LORA")
    if kind != "LORA":
        raise cfg.fault("peft_type", kind, "LORA")
    tensors = _tensors(folder)
    types: dict[str, int] = {}
    for tensor in tensors:
        types[tensor.type] = types.get(tensor.type, 0) + prod(tensor.shape)
    return Adapter(
        path=folder,
        base=cfg.text("base_model_name_or_path", default=None) or None,
        rank=cfg.integer("r", high=MAX_RANK),
        alpha=cfg.number("lora_alpha"),
        use_rslora=cfg.flag("use_rslora", default=False),
        target_modules=_target_modules(cfg),
        tensors=tensors,
        params=sum(types.values()),
        nbytes=sum(t.nbytes for t in tensors),
        use_dora=cfg.flag("use_dora", default=False),
        rank_pattern={
            k: cfg.check_int(f"rank_pattern[{k!r}]", v, high=MAX_RANK)
            for k, v in _pattern(cfg, "rank_pattern").items()
        },
        alpha_pattern=_numbers(cfg, "alpha_pattern"),
        modules_to_save=_strings(cfg, "modules_to_save") or (),
        types=types,
    )


def _tensors(folder: Path) -> tuple[TensorHeader, ...]:
    path = folder / WEIGHTS
    if not path.is_file():
        if (folder / PICKLE).is_file():
            raise InputError(
                f"{PICKLE} is a pickle, which gateup never opens",
                where=str(folder / PICKLE),
                expected=WEIGHTS,
                remedy=CONVERT_ADAPTER,
            )
        raise InputError(
            f"the adapter's weights are not there: no {WEIGHTS}",
            where=str(folder),
            remedy=f"put {WEIGHTS} beside {CONFIG}",
        )
    return tuple(
        t._replace(canonical=t.name.removeprefix(PREFIX)) for t in read_safetensors(path).tensors
    )


def _target_modules(cfg: Config) -> tuple[str, ...] | str | None:
    if isinstance(cfg.raw("target_modules"), str):
        text: str = cfg.text("target_modules")
        return text
    return _strings(cfg, "target_modules")


def _strings(cfg: Config, key: str) -> tuple[str, ...] | None:
    value = cfg.raw(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise cfg.fault(key, value, "a list of module names")
    return tuple(value)


def _pattern(cfg: Config, key: str) -> Mapping[str, Any]:
    return cfg.sub(key).values if cfg.has(key) else {}


def _numbers(cfg: Config, key: str) -> dict[str, float]:
    if not cfg.has(key):
        return {}
    sub = cfg.sub(key)
    return {k: sub.number(k) for k in sub.values}
