"""Held-out sublayers; tolerances count the float32 inside and one rounding to the answer."""

import numpy as np

from gateup.practice.exercise import Case, Expected, Outcome
from gateup.practice.oracles import swiglu, swiglu_magnitude, swiglu_terms, weights, wide


def _norm(x, weight, eps, centre=False, mean=True, inside=True):
    v = wide(x)
    if centre:
        v = v - v.mean(axis=-1, keepdims=True)
    square = np.einsum("th,th->t", v, v)[:, None] / (v.shape[1] if mean else 1)
    root = (square + eps) ** 0.5 if inside else square**0.5 + eps
    return v / root * wide(weight)


def _case(name, rng, T, H, I, dtype, scale=1.0, eps=1e-5):
    x = (rng.normal(size=(T, H)) * scale + scale / 2).astype(dtype)
    return _with(name, x, rng, I, eps)


def _with(name, x, rng, I, eps):
    dtype, H = x.dtype, x.shape[1]
    weight = (1 + 0.3 * rng.normal(size=H)).astype(dtype)
    w = weights(rng, H, I, dtype)
    n = _norm(x, weight, eps)
    y = wide(x) + swiglu(n, *w)
    # Errors inside are float32's for float16 inputs: count them in float16's eps.
    inner = np.finfo(np.promote_types(dtype, np.float32)).eps / np.finfo(dtype).eps
    terms = 2 * swiglu_terms(w[0])
    magnitude = np.abs(wide(x)) / terms + np.abs(y) / terms + inner * swiglu_magnitude(n, *w)
    return Case(
        name,
        (x, weight, eps, *w),
        Expected(y, terms=terms, magnitude=magnitude),
        mistakes={
            "no_residual": y - wide(x),
            "normed_residual": n + swiglu(n, *w),
            "layer_norm": wide(x) + swiglu(_norm(x, weight, eps, centre=True), *w),
            "sum_of_squares": wide(x) + swiglu(_norm(x, weight, eps, mean=False), *w),
            "eps_outside": wide(x) + swiglu(_norm(x, weight, eps, inside=False), *w),
        },
    )


def cases(seed):
    rng = np.random.default_rng(seed)
    T, H, I = (int(n) for n in rng.integers((2, 4, 5), (7, 9, 14)))
    zero_row = rng.normal(size=(3, H)).astype(np.float32)
    zero_row[1] = 0
    return [
        _case("float32", rng, T, H, I, np.float32),
        _case("float64, large eps", rng, T, H, I, np.float64, eps=0.25),
        _case("float32, tiny values", rng, T, H, I, np.float32, scale=1e-4, eps=1e-6),
        _case("float16, squares beyond its range", rng, 3, H, I, np.float16, scale=900.0),
        _with("a row of zeros", zero_row, rng, I, 1e-5),
        _case("no token", rng, 0, H, I, np.float32),
    ]


def recognise(case: Case, outcome: Outcome):
    return "half_squares" if "overflow" in outcome.error or outcome.status == "nan" else None
