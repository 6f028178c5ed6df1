"""Held-out prompts; the peak allowed is far below what the whole prompt takes at once."""

import numpy as np

from gateup.practice.exercise import AtMost, Case, Expected, Outcome
from gateup.practice.oracles import swiglu, swiglu_magnitude, swiglu_terms, weights, wide

SLACK = 16 * 1024  # bytes: Python's own objects


def _case(name, rng, T, H, I, tile, dtype):
    x = rng.normal(size=(T, H)).astype(dtype)
    w = weights(rng, H, I, dtype)
    y = Expected(swiglu(x, *w), terms=swiglu_terms(w[0]), magnitude=swiglu_magnitude(x, *w))
    rows = min(tile, T)
    limit = (2 * T * H + rows * (7 * I + 4 * H)) * x.itemsize + SLACK
    return Case(name, (x, *w, tile), (y, AtMost(limit)))


def cases(seed):
    rng = np.random.default_rng(seed)
    H, I, rest = (int(n) for n in rng.integers((5, 60, 1), (9, 90, 15)))
    return [
        _case("a short last tile", rng, 256 + rest, H, I, 16, np.float64),
        _case("whole tiles", rng, 256, H, I, 32, np.float32),
        _case("one token at a time", rng, 65, H, I, 1, np.float64),
        _case("tile beyond the prompt", rng, 5, H, I, 64, np.float32),
        _case("no token", rng, 0, H, I, 8, np.float32),
    ]


def recognise(case: Case, outcome: Outcome):
    y, limit = case.expected
    if not isinstance(outcome.value, (tuple, list)):
        return None
    got, peak = outcome.value
    if not isinstance(got, np.ndarray) or got.ndim != 2:
        return None
    if got.shape[0] > y.value.shape[0]:
        return "padded_rest"
    if got.shape != y.value.shape:
        return None
    tile = case.args[4]
    whole = len(got) // tile * tile
    rest = got[whole:]
    if rest.size and (not rest.any() or np.isnan(rest).any()):
        return "rest_dropped"
    near = np.allclose(wide(got), y.value, rtol=1e-3, atol=1e-3)
    return "whole" if near and peak > limit.limit else None
