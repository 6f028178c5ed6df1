"""Held-out inputs; the slope in float64 as σ(x) + x·σ(x)·σ(−x)."""

import numpy as np

from gateup.practice.exercise import Case, Expected, Outcome
from gateup.practice.oracles import sigmoid, silu_slope, wide


def _case(name, x):
    v = wide(x)
    # Both summands, and the exponent's own rounding, which e^x makes |x| times larger.
    magnitude = (sigmoid(v) + np.abs(v) * sigmoid(v) * sigmoid(-v)) * (1 + np.abs(v))
    return Case(
        name,
        (x,),
        Expected(silu_slope(v), terms=8, magnitude=magnitude),
        mistakes={
            "relu_step": np.where(v > 0, 1.0, 0.0),
            "sigmoid_slope": sigmoid(v) * sigmoid(-v),
            "x_as_constant": sigmoid(v),
        },
    )


def cases(seed):
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(2, 9, size=2)
    return [
        _case("float32 matrix", (rng.normal(size=(rows, columns)) * 2).astype(np.float32)),
        _case("float64 cube", rng.normal(size=(2, rows, 3)) * 3),
        _case("float16 row", rng.normal(size=11).astype(np.float16)),
        _case("extremes", np.array([-1e4, -750, -90, 0, 90, 750, 1e4], dtype=np.float32)),
        _case("empty", np.zeros((0, 4), dtype=np.float32)),
    ]


def recognise(case: Case, outcome: Outcome):
    if outcome.status == "nan" or "overflow" in outcome.error:
        return "overflow"
    value = outcome.value
    if isinstance(value, np.ndarray) and value.shape == case.expected.value.shape:
        off = np.max(np.abs(wide(value) - case.expected.value), initial=0.0)
        return "difference" if 0 < off < 0.01 else None
    return None
