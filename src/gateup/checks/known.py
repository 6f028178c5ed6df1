"""Known models of the same shape: what they say where no shape can tell right from wrong."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose, isfinite
from typing import Any

from gateup.model.presets import PRESETS, Preset
from gateup.model.spec import ModelSpec

# Fields that together make a shape hardly two models share by chance.
SHAPE = (
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
# Tokens that a fine-tune adds, with the padding of its matrix.
ADDED_TOKENS = 256


def number(value: object) -> float | None:
    """A finite number of a config, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 and isfinite(value) else None


def same(a: float, b: float) -> bool:
    """Equal, but for the rounding to float32 that GGUF metadata have seen (6e-8)."""
    return isclose(a, b, rel_tol=1e-6)


def _value(config: Mapping[str, Any], key: str) -> Any:
    if key == "num_key_value_heads" and config.get(key) is None:
        return config.get("num_attention_heads")
    return config.get(key)


def twins(spec: ModelSpec, *, without: str = "") -> list[Preset]:
    """Presets of the family with the same sizes, a few added tokens allowed.

    without  a field that may differ
    """
    config = spec.config
    keys = [k for k in SHAPE if k != without]
    if any(_value(config, k) is None for k in keys if k != "moe_intermediate_size"):
        return []
    found = []
    for preset in PRESETS.values():
        known = preset.config
        more = spec.vocab_size - (known.get("vocab_size") or 0)
        if (
            known.get("model_type") == spec.family
            and 0 <= more <= ADDED_TOKENS
            and all(_value(known, k) == _value(config, k) for k in keys)
        ):
            found.append(preset)
    return found


def nearest(spec: ModelSpec) -> list[Preset]:
    """Twins that were trained for the same number of positions, all twins where none was."""
    found = twins(spec)
    limit = spec.max_position_embeddings
    exact = [p for p in found if p.config.get("max_position_embeddings") == limit]
    return exact or found


def names(presets: list[Preset]) -> str:
    """ "llama-2-7b", "llama-1-7b and llama-2-7b"."""
    return " and ".join(p.name for p in presets[:3])
