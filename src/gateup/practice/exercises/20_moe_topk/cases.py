"""Held-out logits; the oracle chooses by Python's sort on (-logit, index), token by token."""

import math

import numpy as np

from gateup.practice.exercise import Case, Expected, Outcome


def routed(logits, k, renormalise, key=lambda logit, i: (-logit, i)):
    """Indices and weights; `key` orders the experts."""
    indices = np.zeros((len(logits), k), dtype=np.int64)
    weights = np.zeros((len(logits), k))
    for t, row in enumerate(logits.astype(np.float64).tolist()):
        chosen = sorted(range(len(row)), key=lambda i: key(row[i], i))[:k]
        over = chosen if renormalise else range(len(row))
        for j, i in enumerate(chosen):
            # 1 / Σ exp(other - own): no quotient of tiny numbers.
            weights[t, j] = 1 / math.fsum(math.exp(min(row[o] - row[i], 700)) for o in over)
            indices[t, j] = i
    return indices, weights


def _case(name, logits, k, renormalise):
    indices, weights = routed(logits, k, renormalise)
    # The exponent's rounding: |logit - max| times eps, relative to the weight.
    top = np.abs(logits.astype(np.float64)).max(initial=0.0)
    magnitude = weights * (1 + min(2 * top, 40))
    mistakes = {
        "worst_first": (indices[:, ::-1], weights[:, ::-1]),
        "ties_high": routed(logits, k, renormalise, key=lambda logit, i: (-logit, -i)),
    }
    key = "never_renormalised" if renormalise else "always_renormalised"
    mistakes[key] = routed(logits, k, not renormalise)
    answer = (indices, Expected(weights, terms=logits.shape[1] + 8, magnitude=magnitude))
    return Case(name, (logits, k, renormalise), answer, mistakes)


def cases(seed):
    rng = np.random.default_rng(seed)
    T, E = (int(n) for n in rng.integers((3, 5), (8, 12)))
    ties = rng.integers(0, 2, size=(T + 6, 6)).astype(np.float32)
    far = np.zeros((2, 6), dtype=np.float32)
    far[0, [1, 4]], far[1, [0, 5]] = 1e4, -1e4
    return [
        _case("softmax over all", rng.normal(size=(T, E)).astype(np.float32), 2, False),
        _case("renormalised", rng.normal(size=(T, E)).astype(np.float32), 3, True),
        _case("float64", rng.normal(size=(T, E)) * 3, 2, True),
        _case("ties", ties, 3, False),
        _case("ten thousand", far, 2, True),
        _case("one expert", rng.normal(size=(T, 1)).astype(np.float32), 1, False),
        _case("no token", np.zeros((0, E), dtype=np.float32), 2, True),
    ]


def recognise(case: Case, outcome: Outcome):
    return "overflow" if "overflow" in outcome.error or outcome.status == "nan" else None
