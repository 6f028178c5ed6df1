"""Held-out networks of ragged shapes, in float64 by einsum."""

import numpy as np

from gateup.practice.exercise import Case, Expected
from gateup.practice.oracles import (
    product,
    relu,
    sigmoid,
    silu,
    swiglu,
    swiglu_magnitude,
    swiglu_terms,
    weights,
    wide,
)


def _case(name, rng, lead, H, I, dtype, scale=1.0):
    x = (rng.normal(size=(*lead, H)) * scale).astype(dtype)
    w = weights(rng, H, I, dtype)
    y = swiglu(x, *w)
    return Case(
        name,
        (x, *w),
        Expected(y, terms=swiglu_terms(w[0]), magnitude=swiglu_magnitude(x, *w)),
        mistakes={
            "relu": swiglu(x, *w, act=relu),
            "swapped": swiglu(x, w[1], w[0], w[2]),
            "sigmoid": swiglu(x, *w, act=sigmoid),
            "act_on_product": product(silu(product(x, w[0]) * product(x, w[1])), w[2]),
            "residual": wide(x) + y,
        },
    )


def cases(seed):
    rng = np.random.default_rng(seed)
    T, H, I = (int(n) for n in rng.integers((2, 3, 5), (7, 9, 14)))
    return [
        _case("float32", rng, (T,), H, I, np.float32),
        _case("float64, batch and sequence", rng, (2, T), H, I + 1, np.float64),
        _case("one vector", rng, (), H, I, np.float32),
        _case("as wide as deep", rng, (H,), H, H, np.float64),
        _case("gates of ten thousand", rng, (3,), H, I, np.float32, scale=1e4),
        _case("no token", rng, (2, 0), H, I, np.float32),
    ]
