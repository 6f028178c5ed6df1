"""Held-out layers; the oracle runs the model again for each neuron, with its gate row at zero."""

import numpy as np

from gateup.practice.exercise import Case, Expected
from gateup.practice.oracles import (
    product,
    product_magnitude,
    silu,
    swiglu,
    swiglu_magnitude,
    swiglu_terms,
    weights,
    wide,
)


def _logits(h, w_gate, w_up, w_down, unembed, off=(), residual=1.0):
    gate = wide(w_gate).copy()
    gate[list(off)] = 0  # silu(0) = 0
    return product(residual * wide(h) + swiglu(h, gate, w_up, w_down), unembed)


def _answer(args, k, sign=1.0, key=np.abs, residual=1.0):
    """change by ablating one neuron after another, the order by `key`, the logits after."""
    before = _logits(*args, residual=residual)
    top, I = int(np.argmax(before)), len(args[1])
    after = [_logits(*args, off=[i], residual=residual)[top] for i in range(I)]
    change = np.array(after) - before[top]
    order = sorted(range(I), key=lambda i: -key(change)[i])[:k]
    logits = _logits(*args, off=order, residual=residual)
    return sign * change, np.array(order, dtype=np.int64), logits


def _apart(args, k):
    """Whether no order hangs on rounding: 1% between neighbours, 0.01 between the best tokens."""
    change = np.sort(np.abs(_answer(args, k)[0]))[::-1][: k + 1]
    best = np.sort(_logits(*args))[-2:]
    return (change[:-1] > 1.01 * change[1:]).all() and best[1] - best[0] > 0.01


def _case(name, rng, H, I, V, k, dtype):
    while True:
        h, unembed = (rng.normal(size=s).astype(dtype) for s in ((H,), (V, H)))
        args = (h, *weights(rng, H, I, dtype), unembed)
        if _apart(args, k):
            break
    change, order, logits = _answer(args, k)
    w = args[1:4]
    p = silu(product(h, w[0])) * product(h, w[1])
    spread = swiglu_magnitude(h, *w) + np.abs(wide(h))
    at_logits = product_magnitude(spread, unembed)
    terms = swiglu_terms(w[0]) + H
    return Case(
        name,
        (*args, k),
        (
            Expected(change, terms=terms, magnitude=np.full(I, at_logits.max())),
            order,
            Expected(logits, terms=terms, magnitude=at_logits),
        ),
        mistakes={
            "contribution": _answer(args, k, sign=-1.0),
            "by_activation": _answer(args, k, key=lambda change: np.abs(p)),
            "signed_order": _answer(args, k, key=lambda change: -change),
            "no_residual": _answer(args, k, residual=0.0),
        },
    )


def cases(seed):
    rng = np.random.default_rng(seed)
    H, I, V = (int(n) for n in rng.integers((4, 12, 6), (8, 20, 12)))
    return [
        _case("float32", rng, H, I, V, 4, np.float32),
        _case("float64", rng, H, I, V, 3, np.float64),
        _case("all but one", rng, H, 6, V, 5, np.float64),
        _case("one neuron off", rng, H, I, V, 1, np.float32),
    ]
