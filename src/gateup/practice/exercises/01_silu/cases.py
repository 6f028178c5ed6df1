"""Held-out inputs; SiLU in float64 by the textbook's formula, which the solution cannot use."""

import numpy as np

from gateup.practice.exercise import Case, Expected, Outcome


def _sigmoid(x):
    """σ in float64; where exp overflows (x < -709) the quotient is the right 0."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x.astype(np.float64)))


def _case(name, x):
    x64 = x.astype(np.float64)
    terms = 8  # |x|, exp, where, +, · and / round once each; σ(x)'s exponent adds |x| · eps
    magnitude = np.abs(x64 * _sigmoid(x)) * (1 + np.abs(x64))
    return Case(
        name,
        (x,),
        Expected(x64 * _sigmoid(x), terms=terms, magnitude=magnitude),
        mistakes={
            "relu": np.maximum(x64, 0),
            "sigmoid": _sigmoid(x),
            "gelu_approximation": x64 * _sigmoid(1.702 * x64),
        },
    )


def cases(seed):
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(2, 9, size=2)
    return [
        _case("float32 matrix", rng.normal(size=(rows, columns)).astype(np.float32)),
        _case("float64 cube", rng.normal(size=(2, rows, 3)) * 4),
        _case("near zero", (rng.normal(size=7) * 1e-6).astype(np.float32)),
        _case("far from zero", rng.uniform(-1000, 1000, size=32).astype(np.float32)),
        _case("no dimensions", np.float32(rng.normal()).reshape(())),
    ]


def recognise(case: Case, outcome: Outcome):
    if outcome.status == "nan" or "overflow" in outcome.error:
        return "overflow"
    if outcome.status == "wrong dtype":
        return "float64"
    return None
