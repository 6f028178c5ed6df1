"""What exercises' cases compare with: float64 definitions, and how far rounding may carry.

Every function takes arrays of any float dtype and answers in float64. A `*_magnitude` is what
`Expected.magnitude` wants: the sum of the absolute values that meet in an element, through the
whole chain, so that `terms · eps · magnitude` bounds the rounding of any sensible order.

Letters: T tokens, H hidden_size, I intermediate_size. Weights are [out, in].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any
Act = Callable[[Array], Array]
# The steepest slope among the activations here: gelu's is 1.129, silu's 1.0998.
SLOPE = 1.13
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def wide(x: Array) -> Array:
    return np.asarray(x).astype(np.float64)


def sigmoid(x: Array) -> Array:
    """By the textbook's formula; where exp overflows (x < -709) the quotient is the right 0."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-wide(x)))


def silu(x: Array) -> Array:
    return wide(x) * sigmoid(x)


def silu_slope(x: Array) -> Array:
    """σ(x) + x·σ(x)·σ(−x)."""
    return sigmoid(x) + wide(x) * sigmoid(x) * sigmoid(-wide(x))


def relu(x: Array) -> Array:
    return np.where(wide(x) > 0, wide(x), 0.0)


def gelu(x: Array) -> Array:
    """x·Φ(x), through erfc, which keeps its digits in the left tail."""
    return wide(x) * _erfc(-wide(x) / math.sqrt(2)) / 2


def gelu_tanh(x: Array) -> Array:
    """tanh-GELU as x·σ(2z), z = √(2/π)·(x + 0.044715·x³)."""
    z = math.sqrt(2 / math.pi) * (wide(x) + 0.044715 * wide(x) ** 3)
    return wide(x) * sigmoid(2 * z)


def product(x: Array, w: Array) -> Array:
    """x·Wᵀ over the last axis: [..., in] and [out, in] → [..., out]."""
    return np.einsum("...i,oi->...o", wide(x), wide(w))


def product_magnitude(x: Array, w: Array) -> Array:
    return product(np.abs(wide(x)), np.abs(wide(w)))


def swiglu(x: Array, w_gate: Array, w_up: Array, w_down: Array, act: Act = silu) -> Array:
    """[..., H] → [..., H]."""
    return product(act(product(x, w_gate)) * product(x, w_up), w_down)


def swiglu_magnitude(x: Array, w_gate: Array, w_up: Array, w_down: Array) -> Array:
    """Σ|·| of an output: an error of gate grows by the slope times |up|, one of up by |act|."""
    gate, up = product(x, w_gate), product(x, w_up)
    g, u = product_magnitude(x, w_gate), product_magnitude(x, w_up)
    inner = SLOPE * g * np.abs(up) + np.abs(silu(gate)) * (u + np.abs(up) * (1 + np.abs(gate)))
    return product_magnitude(inner, w_down)


def swiglu_terms(w_gate: Array) -> int:
    """Roundings of the longest chain: two sums, and about 8 for act ⊙ up."""
    return int(sum(w_gate.shape)) + 8


def near(got: Any, value: Array, within: float = 1e-3) -> bool:
    """Whether `got` is an array like `value`, to a thousandth: to recognise, never to judge."""
    alike = isinstance(got, np.ndarray) and got.shape == np.shape(value)
    return alike and bool(np.allclose(wide(got), value, rtol=within, atol=within))


def items(value: Any, count: int) -> list[Any] | None:
    """An answer of `count` values, whose last ones may be counts; None if it is no such thing."""
    return list(value) if isinstance(value, (tuple, list)) and len(value) == count else None


def count(value: Any) -> float:
    """A number that a harness counted; NaN, which is neither more nor less, for anything else."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and abs(value) < 1e300 else math.nan


def weights(
    rng: np.random.Generator, H: int, I: int, dtype: Any = np.float64
) -> tuple[Array, Array, Array]:
    """w_gate, w_up [I, H] and w_down [H, I], scaled so that outputs are near 1."""
    shapes = ((I, H), (I, H), (H, I))
    made = [(rng.normal(size=s) * (2 / s[1]) ** 0.5).astype(dtype) for s in shapes]
    return made[0], made[1], made[2]
