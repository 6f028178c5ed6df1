"""Held-out routings with empty experts; the oracle runs every expert on every token."""

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
    wide,
)


def _case(name, rng, T, k, E, used, dtype, H=5, I=7):
    """`used`: the experts that the router picks from, at least k."""
    x = rng.normal(size=(T, H)).astype(dtype)
    picked = [rng.choice(used, size=k, replace=False) for _ in range(T)]
    indices = np.array(picked, dtype=np.int64).reshape(T, k)
    share = rng.uniform(0.1, 1, size=(T, k)).astype(dtype)
    made = [weights(rng, H, I, dtype) for _ in range(E)]
    every = np.stack([swiglu(x, *w) for w in made])  # [E, T, H]
    errors = np.stack([swiglu_magnitude(x, *w) for w in made])
    token = np.arange(T)[:, None]
    y = np.einsum("tk,tkh->th", wide(share), every[indices, token])
    magnitude = np.einsum("tk,tkh->th", wide(share), errors[indices, token])
    pairs = sorted((int(e), p) for p, e in enumerate(indices.ravel()))
    terms = swiglu_terms(made[0][0]) + k
    stacked = (np.stack([w[i] for w in made]) for i in range(3))
    return Case(
        name,
        (x, indices, share, *stacked),
        (
            Expected(y, terms=terms, magnitude=magnitude),
            np.array([sum(e == i for e, _ in pairs) for i in range(E)], dtype=np.int64),
            np.array([p for _, p in pairs], dtype=np.int64),
            AtMost(len({e for e, _ in pairs})),
        ),
    )


def cases(seed):
    rng = np.random.default_rng(seed)
    T = int(rng.integers(5, 10))
    return [
        _case("two of four", rng, T, 2, 4, [0, 1, 2, 3], np.float32),
        _case("empty experts", rng, T, 2, 6, [1, 2, 4], np.float64),
        _case("all to the last", rng, T, 1, 3, [2], np.float32),
        _case("one token", rng, 1, 3, 5, [0, 2, 3, 4], np.float32),
        _case("no token", rng, 0, 2, 3, [0, 1, 2], np.float32),
    ]


def recognise(case: Case, outcome: Outcome):
    answer = items(outcome.value, 4)
    if answer is None:
        return None
    got, calls = answer[0], count(answer[3])
    x, indices, share, *stacked = case.args
    (T, k), right = indices.shape, case.expected[0].value
    if near(got, right):
        if not calls > case.expected[3].limit:
            return None
        return "token_by_token" if calls == T * k > len(stacked[0]) else "empty_called"
    every = np.stack([swiglu(x, *w) for w in zip(*stacked, strict=True)])
    answers = every[indices, np.arange(T)[:, None]]  # [T, k, H]
    weighted = wide(share)[..., None] * answers
    if near(got, weighted[np.arange(T), np.argmax(indices, axis=1)]):
        return "overwritten"  # the expert with the highest number comes last
    if near(got, answers.sum(axis=1)):
        return "unweighted"
    shifted = np.zeros_like(right)
    for p, e in enumerate(indices.ravel()):
        shifted[p % T] += wide(share).ravel()[p] * every[e, p % T]
    return "wrong_token" if near(got, shifted) else None
