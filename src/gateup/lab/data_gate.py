"""act(a)·b and its derivatives, in numpy: what the Gate page draws.

a is the gate's pre-activation, b the up projection's output. Every function is act(a)·factor(b),
so a surface is an outer product and both partial derivatives are products as well. The tests hold
values and derivatives against gateup.ops.activations in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Curve = Callable[[Array], Array]

# gateup.ops.activations' constants; it imports torch, which the lab does not need.
LIMIT, ALPHA = 7.0, 1.702
TANH_SCALE, TANH_CUBIC = math.sqrt(2 / math.pi), 0.044715

GRID = 41  # points a side of a surface
LINE = 161  # points of a slice


@dataclass(frozen=True, slots=True)
class Gate:
    """z(a, b) = act(a)·factor(b).

    act, slope            value and derivative in a
    factor, factor_slope  value and derivative in b
    latex                 the formula
    ops                   its name in gateup.ops.activations; "" where it has no gate
    """

    name: str
    act: Curve
    slope: Curve
    factor: Curve
    factor_slope: Curve
    latex: str
    ops: str

    def value(self, a: Array, b: Array) -> Array:
        return self.act(a) * self.factor(b)

    def by_a(self, a: Array, b: Array) -> Array:
        """∂z/∂a"""
        return self.slope(a) * self.factor(b)

    def by_b(self, a: Array, b: Array) -> Array:
        """∂z/∂b"""
        return self.act(a) * self.factor_slope(b)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _silu(a: Array) -> Array:
    return a * _sigmoid(a)


def _silu_slope(a: Array) -> Array:
    s = _sigmoid(a)
    return s * (1 + a * (1 - s))


def _normal(a: Array) -> Array:
    """Φ, the normal distribution; numpy has no erf."""
    flat = [0.5 * (1 + math.erf(x / math.sqrt(2))) for x in np.ravel(a)]
    return np.array(flat).reshape(np.shape(a))


def _gelu(a: Array) -> Array:
    return a * _normal(a)


def _gelu_slope(a: Array) -> Array:
    return np.asarray(_normal(a) + a * np.exp(-a * a / 2) / math.sqrt(2 * math.pi))


def _gelu_tanh(a: Array) -> Array:
    return np.asarray(0.5 * a * (1 + np.tanh(TANH_SCALE * (a + TANH_CUBIC * a**3))))


def _gelu_tanh_slope(a: Array) -> Array:
    t = np.tanh(TANH_SCALE * (a + TANH_CUBIC * a**3))
    return np.asarray(
        0.5 * (1 + t) + 0.5 * a * (1 - t * t) * TANH_SCALE * (1 + 3 * TANH_CUBIC * a * a)
    )


def _relu(a: Array) -> Array:
    return np.maximum(a, 0)


def _step(a: Array) -> Array:
    return np.asarray(a > 0, dtype=np.float64)


def _sigmoid_slope(a: Array) -> Array:
    s = _sigmoid(a)
    return s * (1 - s)


def _same(x: Array) -> Array:
    return x


def _one(x: Array) -> Array:
    return np.ones_like(x)


def _zero(x: Array) -> Array:
    return np.zeros_like(x)


def _gpt_oss(a: Array) -> Array:
    bounded = np.minimum(a, LIMIT)
    return bounded * _sigmoid(ALPHA * bounded)


def _gpt_oss_slope(a: Array) -> Array:
    s = _sigmoid(ALPHA * np.minimum(a, LIMIT))
    inside = s + np.minimum(a, LIMIT) * ALPHA * s * (1 - s)
    return np.where(a > LIMIT, 0.0, inside)


def _gpt_oss_factor(b: Array) -> Array:
    return np.clip(b, -LIMIT, LIMIT) + 1


def _inside(b: Array) -> Array:
    return np.asarray((b >= -LIMIT) & (b <= LIMIT), dtype=np.float64)


def _gated(name: str, act: Curve, slope: Curve, latex: str, ops: str = "") -> Gate:
    return Gate(name, act, slope, _same, _one, latex, ops or name)


GATES: Mapping[str, Gate] = {
    g.name: g
    for g in (
        _gated("silu", _silu, _silu_slope, r"a\,\sigma(a)\cdot b"),
        _gated("gelu", _gelu, _gelu_slope, r"a\,\Phi(a)\cdot b"),
        _gated(
            "gelu_tanh",
            _gelu_tanh,
            _gelu_tanh_slope,
            r"\frac{a}{2}\left(1+\tanh\left(\sqrt{2/\pi}\,(a+0.044715\,a^3)\right)\right)\cdot b",
        ),
        _gated("relu", _relu, _step, r"\max(a,0)\cdot b"),
        _gated("bilinear", _same, _one, r"a\cdot b", "identity"),
        _gated("sigmoid", _sigmoid, _sigmoid_slope, r"\sigma(a)\cdot b"),
        Gate(
            "gpt_oss",
            _gpt_oss,
            _gpt_oss_slope,
            _gpt_oss_factor,
            _inside,
            r"a'\,\sigma(1.702\,a')\cdot(b'+1),\quad a'=\min(a,7),\ b'=\min(\max(b,-7),7)",
            "gpt_oss",
        ),
        Gate("ungated", _gelu, _gelu_slope, _one, _zero, r"a\,\Phi(a)", ""),
    )
}


def axis(reach: float, points: int = GRID) -> Array:
    """`points` values from -reach to reach."""
    return np.linspace(-reach, reach, points)


@cache
def surface(name: str, reach: float) -> tuple[tuple[float, ...], tuple[tuple[float, ...], ...]]:
    """(axis, z): z[j][i] at a = axis[i], b = axis[j]; rounded to what a screen can show."""
    line = axis(reach)
    gate = GATES[name]
    z = np.outer(gate.factor(line), gate.act(line))
    rounded = tuple(tuple(float(x) for x in row) for row in np.round(z, 4))
    return tuple(float(x) for x in np.round(line, 6)), rounded


@cache
def scale(reach: float) -> tuple[float, float]:
    """(lowest, highest) z of all functions over the square: one scale for every surface."""
    line = axis(reach)
    all_z = [np.outer(g.factor(line), g.act(line)) for g in GATES.values()]
    return float(min(z.min() for z in all_z)), float(max(z.max() for z in all_z))


@dataclass(frozen=True, slots=True)
class Slice:
    """One function along a (at a fixed b) or along b: values and both derivatives."""

    name: str
    x: list[float]
    z: list[float]
    by_a: list[float]
    by_b: list[float]


def slices(names: Sequence[str], along: str, a: float, b: float, reach: float) -> tuple[Slice, ...]:
    """`along` "a": b stays as given; "b": a stays."""
    line = axis(reach, LINE)
    held = np.full_like(line, b if along == "a" else a)
    at, bt = (line, held) if along == "a" else (held, line)
    return tuple(
        Slice(
            name,
            _listed(line),
            _listed(GATES[name].value(at, bt)),
            _listed(GATES[name].by_a(at, bt)),
            _listed(GATES[name].by_b(at, bt)),
        )
        for name in names
    )


def _listed(values: Array) -> list[float]:
    return [float(x) for x in np.round(values, 5)]


def slice_ranges(reach: float) -> dict[str, tuple[float, float]]:
    """One y axis for each quantity, whatever is chosen: all functions, the whole square."""
    line = axis(reach)
    grids: dict[str, list[Any]] = {"z": [], "by_a": [], "by_b": []}
    for g in GATES.values():
        grids["z"].append(np.outer(g.factor(line), g.act(line)))
        grids["by_a"].append(np.outer(g.factor(line), g.slope(line)))
        grids["by_b"].append(np.outer(g.factor_slope(line), g.act(line)))
    return {
        key: (float(min(x.min() for x in each)), float(max(x.max() for x in each)))
        for key, each in grids.items()
    }


@dataclass(frozen=True, slots=True)
class Probe:
    """One function at one point."""

    name: str
    z: float
    by_a: float
    by_b: float


def probe(names: Sequence[str], a: float, b: float) -> tuple[Probe, ...]:
    """Value and both partial derivatives of each function at (a, b)."""
    at, bt = np.array([a]), np.array([b])
    return tuple(
        Probe(
            name,
            float(GATES[name].value(at, bt)[0]),
            float(GATES[name].by_a(at, bt)[0]),
            float(GATES[name].by_b(at, bt)[0]),
        )
        for name in names
    )
