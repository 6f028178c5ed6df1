"""Held-out rows; loads and stores are limited to one touch of every number."""

import numpy as np

from gateup.practice.exercise import AtMost, Case, Expected, Outcome
from gateup.practice.oracles import count, items, near, silu, wide


def _case(name, rng, T, I, block, scale=2.0):
    rows = (rng.normal(size=(T, 2 * I)) * scale).astype(np.float32)
    gate, up = wide(rows[:, :I]), wide(rows[:, I:])
    # σ by tanh cancels in the left tail, so the error is that of gate·up.
    magnitude = np.abs(gate * up) * (1 + np.minimum(np.abs(gate), 9))
    y = Expected(silu(gate) * up, terms=8, magnitude=magnitude)
    return Case(name, (rows, T, I, block), (y, AtMost(2 * T * I), AtMost(T * I)))


def cases(seed):
    rng = np.random.default_rng(seed)
    T, I = (int(n) for n in rng.integers((2, 9), (6, 16)))
    return [
        _case("a short last block", rng, T, 3 * I + 1, I, 2.0),
        _case("whole blocks", rng, T, 4 * I, I),
        _case("block beyond the width", rng, T, I, 2 * I),
        _case("one number at a time", rng, 2, I, 1),
        _case("far out", rng, 2, I, 4, scale=300.0),
        _case("no token", rng, 0, I, 4),
    ]


def recognise(case: Case, outcome: Outcome):
    if "more than block" in outcome.error:
        return "block_exceeded"
    answer = items(outcome.value, 3)
    rows, T, I, block = case.args
    if answer is None or np.shape(answer[0]) != (T, I):
        return None
    got, loaded, stored = np.asarray(answer[0]), count(answer[1]), count(answer[2])
    y, loads, stores = case.expected
    end = I // block * block
    if np.isnan(got[:, end:]).any() and not np.isnan(got[:, :end]).any():
        return "rest_dropped"
    if near(got, y.value):
        if stored > stores.limit:
            return "two_passes"
        return "gate_reloaded" if loaded > loads.limit else None
    neighbours = silu(rows[:, ::2]) * wide(rows[:, 1::2])
    return "interleaved" if near(got, neighbours) else None
