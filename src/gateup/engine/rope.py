"""Rotary frequencies of every scaling in use, in the arithmetic of the models' own code.

Each scaling changes θ_j = base^(-2j/d), the turn per position of pair j of the d turned numbers:
linear divides by a factor; dynamic raises the base with the length of text; yarn and llama3 divide
low frequencies only, with a ramp between; longrope has a factor for each pair, one list for short
texts and one for long. [source: transformers' modeling_rope_utils, whose float32 operations are
followed in their order, so that the values are the same]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gateup.engine.config import RopeConfig
from gateup.model.config import Config

# Spellings of a scaling -> its name here.
KINDS: Mapping[str, str] = {
    "default": "default",
    "none": "default",  # GGUF
    "linear": "linear",
    "dynamic": "dynamic",
    "yarn": "yarn",
    "llama3": "llama3",
    "longrope": "longrope",
    "su": "longrope",  # Phi-3's first files
}


@dataclass(frozen=True, slots=True)
class RopeScope:
    """What a scaling depends on beside its own settings.

    dim       numbers of a head that are turned
    base      rope_theta
    context   positions that the text may have
    trained   max_position_embeddings
    original  original_max_position_embeddings, where the config has it apart from the settings
    """

    dim: int
    base: float
    context: int
    trained: int
    original: int | None = None


def rope_config(settings: Config, scope: RopeScope) -> RopeConfig:
    """The frequencies under `settings` (rope_scaling's content, or rope_parameters').

    Raises ConfigError for a scaling that is not known or lacks a number.
    """
    kind = settings.text("rope_type", "type", default="default")
    if kind not in KINDS:
        raise settings.fault("rope_type", kind, "one of " + ", ".join(KINDS))
    freq, scale = _SCALINGS[KINDS[kind]](settings, scope)
    return RopeConfig(tuple(freq.tolist()), scale)


def divided(rope: RopeConfig, factors: torch.Tensor) -> RopeConfig:
    """Frequencies divided by a table of factors, one per pair (GGUF's rope_freqs)."""
    freq = torch.tensor(rope.inv_freq, dtype=torch.float32) / factors
    return RopeConfig(tuple(freq.tolist()), rope.scale)


Scaled = tuple[torch.Tensor, float]


def _powers(base: float, dim: int) -> torch.Tensor:
    """base^(2j/dim), [dim/2] float32."""
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).to(torch.float32) / dim
    return torch.pow(torch.tensor(base, dtype=torch.float32), exponents)


def _default(settings: Config, scope: RopeScope) -> Scaled:
    del settings
    return 1.0 / _powers(scope.base, scope.dim), 1.0


def _factor(settings: Config) -> float:
    factor = settings.number("factor")
    if factor <= 0:
        raise settings.fault("factor", factor, "a number above 0")
    return float(factor)


def _linear(settings: Config, scope: RopeScope) -> Scaled:
    return 1.0 / _powers(scope.base, scope.dim) / _factor(settings), 1.0


def _dynamic(settings: Config, scope: RopeScope) -> Scaled:
    """base · (factor·L/trained - (factor - 1))^(d/(d-2)) for a text of L > trained positions."""
    factor = _factor(settings)
    length = max(scope.context, scope.trained)
    growth = factor * length / scope.trained - (factor - 1)
    base = scope.base * growth ** (scope.dim / (scope.dim - 2)) if scope.dim > 2 else scope.base
    return 1.0 / _powers(base, scope.dim), 1.0


def _original(settings: Config, scope: RopeScope) -> int:
    if scope.original is not None:
        return scope.original
    found: int = settings.integer(
        "original_max_position_embeddings", default=scope.trained, high=1 << 40
    )
    return found


def _mscale(factor: float, weight: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _yarn(settings: Config, scope: RopeScope) -> Scaled:
    """Interpolated by `factor` where a pair turns fewer than beta_slow times in the original
    context, left alone above beta_fast turns, a linear ramp over the pairs between."""
    original = _original(settings, scope)
    factor = _factor(settings) if settings.has("factor") else scope.trained / original
    attention = settings.number("attention_factor", default=None)
    if attention is None:
        over = settings.number("mscale", default=0.0)
        under = settings.number("mscale_all_dim", default=0.0)
        attention = _mscale(factor)
        if over and under:
            attention = _mscale(factor, over) / _mscale(factor, under)

    def pair_of(turns: float) -> float:
        """The (fractional) pair that turns so often within the original context."""
        ratio = original / (turns * 2 * math.pi)
        return scope.dim * math.log(ratio) / (2 * math.log(scope.base))

    low = pair_of(settings.number("beta_fast", default=32.0) or 32.0)
    high = pair_of(settings.number("beta_slow", default=1.0) or 1.0)
    if settings.flag("truncate", default=True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, scope.dim - 1)
    if low == high:
        high += 0.001  # a ramp of no width would divide by 0
    ramp = ((torch.arange(scope.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    powers = _powers(scope.base, scope.dim)
    freq = 1.0 / (factor * powers) * (1 - keep) + 1.0 / powers * keep
    return freq, float(attention)


def _llama3(settings: Config, scope: RopeScope) -> Scaled:
    """Wavelengths above original/low_freq_factor are stretched by `factor`, those below
    original/high_freq_factor are not, a linear blend between."""
    factor = _factor(settings)
    low = settings.number("low_freq_factor")
    high = settings.number("high_freq_factor")
    if not 0 < low < high:
        raise settings.fault("low_freq_factor", low, f"above 0, below high_freq_factor {high}")
    original = _original(settings, scope)
    freq = 1.0 / _powers(scope.base, scope.dim)
    wave = 2 * math.pi / freq
    stretched = torch.where(wave > original / low, freq / factor, freq)
    blend = (original / wave - low) / (high - low)
    blended = (1 - blend) * stretched / factor + blend * stretched
    between = ~(wave < original / high) * ~(wave > original / low)
    return torch.where(between, blended, stretched), 1.0


def _longrope(settings: Config, scope: RopeScope) -> Scaled:
    """1 / (f_j · base^(2j/d)): the long list where the text may exceed the original context."""
    original = _original(settings, scope)
    factor = settings.number("factor", default=scope.trained / original)
    attention = settings.number("attention_factor", default=None)
    if attention is None:
        attention = 1.0
        if factor > 1:
            attention = math.sqrt(1 + math.log(factor) / math.log(original))
    key = "long_factor" if scope.context > original else "short_factor"
    factors = _numbers(settings, key, scope.dim // 2)
    freq = 1.0 / (torch.tensor(factors, dtype=torch.float32) * _powers(scope.base, scope.dim))
    return freq, float(attention)


def _numbers(settings: Config, key: str, length: int) -> list[float]:
    value: Any = settings.raw(key)
    if not isinstance(value, list) or len(value) != length:
        raise settings.fault(key, value, f"a list of {length} numbers, one per pair")
    return [settings.check_number(f"{key}[{i}]", v) for i, v in enumerate(value)]


_SCALINGS: Mapping[str, Callable[[Config, RopeScope], Scaled]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}
