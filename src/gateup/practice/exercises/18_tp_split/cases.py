"""Held-out splits: the result, the number of all-reduces, and each rank's own part."""

import numpy as np

from gateup.model.layout import GateUpLayout, shard
from gateup.practice.exercise import Case, Expected, Outcome
from gateup.practice.oracles import (
    count,
    items,
    near,
    product,
    silu,
    swiglu,
    swiglu_magnitude,
    swiglu_terms,
    weights,
    wide,
)


def _parts(x, w_gate, w_up, w_down, tp):
    """[tp, T, H], by the ranks' shards as gateup's layout algebra cuts them."""
    out = []
    for rank in range(tp):
        own = shard({"gate": w_gate, "up": w_up}, GateUpLayout(), tp, rank)
        n = w_gate.shape[0] // tp
        down = w_down[:, n * rank : n * (rank + 1)]
        out.append(swiglu(x, own["gate"], own["up"], down))
    return np.stack(out)


def _case(name, rng, T, H, I, tp, dtype):
    x = rng.normal(size=(T, H)).astype(dtype)
    w = weights(rng, H, I, dtype)
    magnitude = swiglu_magnitude(x, *w)
    terms = swiglu_terms(w[0]) + tp
    y = np.broadcast_to(swiglu(x, *w), (tp, T, H))
    return Case(
        name,
        (x, *w, tp),
        (
            Expected(y, terms=terms, magnitude=np.broadcast_to(magnitude, y.shape)),
            Expected(1, self_reported=True),
            Expected(
                _parts(x, *w, tp),
                terms=terms,
                magnitude=np.broadcast_to(magnitude, y.shape),
                self_reported=True,
            ),
        ),
    )


def cases(seed):
    rng = np.random.default_rng(seed)
    T, H, n = (int(v) for v in rng.integers((2, 4, 3), (6, 9, 7)))
    return [
        _case("two ranks", rng, T, H, 2 * n, 2, np.float32),
        _case("three ranks, float64", rng, T, H, 3 * n, 3, np.float64),
        _case("a neuron each", rng, T, H, 4, 4, np.float32),
        _case("one rank", rng, T, H, n, 1, np.float32),
    ]


def recognise(case: Case, outcome: Outcome):
    answer = items(outcome.value, 3)
    whole = case.expected[0].value
    if answer is None or np.isnan(count(answer[1])):
        return None
    calls, given = count(answer[1]), answer[2]
    if calls != 1:
        return "reduced_before_down" if calls else "no_all_reduce"
    if not isinstance(given, np.ndarray) or given.shape != whole.shape:
        return None
    if near(given, whole):
        return "not_split"
    x, w_gate, w_up, w_down, tp = case.args
    n, cut = len(w_gate) // tp, len(w_down) // tp  # a rank's neurons; outputs, if cut by those
    hidden = silu(product(x, w_gate)) * product(x, w_up)
    hidden[:, n:] = 0
    if near(given[0][:, :cut], product(hidden, w_down)[:, :cut]) and not given[0][:, cut:].any():
        return "down_by_rows"
    others = (wide(w_up)[::tp], wide(w_up)[n : 2 * n])  # every tp-th row, the next rank's rows
    wrong = [swiglu(x, w_gate[:n], rows, w_down[:, :n]) for rows in others if len(rows) == n]
    return "up_of_another" if any(near(given[0], v) for v in wrong) else None
