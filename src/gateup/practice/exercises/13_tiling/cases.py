"""Held-out prompts; the peak allowed is far below what the whole prompt takes at once."""

import numpy as np

from gateup.practice.exercise import AtMost, Case, Expected, Outcome
from gateup.practice.oracles import (
    count,
    items,
    near,
    swiglu,
    swiglu_magnitude,
    swiglu_terms,
    weights,
)

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
    answer = items(outcome.value, 2)
    if answer is None or not isinstance(answer[0], np.ndarray) or answer[0].ndim != 2:
        return None
    got, peak = answer[0], count(answer[1])
    right, (x, w_gate, _, _, tile) = case.expected[0].value, case.args
    if len(got) > len(right):
        return "padded_rest"
    rest = got[len(right) // tile * tile :]
    if got.shape == right.shape and rest.size and (not rest.any() or np.isnan(rest).any()):
        return "rest_dropped"
    at_once = 2 * len(x) * len(w_gate) * x.itemsize  # gate and up of the whole prompt
    return "whole" if near(got, right) and peak >= at_once > case.expected[1].limit else None
