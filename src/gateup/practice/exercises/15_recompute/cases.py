"""Held-out gradients by formula in float64, and the bytes that may be kept."""

import numpy as np

from gateup.practice.exercise import AtMost, Case, Expected, Outcome, Tensor
from gateup.practice.oracles import (
    SLOPE,
    count,
    items,
    near,
    product,
    silu,
    silu_slope,
    swiglu_magnitude,
    swiglu_terms,
    weights,
    wide,
)

EAGER, FUSED = 4, 3  # tensors of width I, where the budget has 2


def _passes(x, w_gate, w_up, w_down, dy, act=silu, slope=silu_slope):
    """y and the gradients of x, w_gate, w_up and w_down."""
    g, u = product(x, w_gate), product(x, w_up)
    dp = product(dy, wide(w_down).T)
    du, dg = dp * act(g), dp * u * slope(g)
    dx = product(dg, wide(w_gate).T) + product(du, wide(w_up).T)
    dw = [np.einsum("to,ti->oi", a, wide(b)) for a, b in ((dg, x), (du, x))]
    return product(act(g) * u, w_down), dx, *dw, np.einsum("to,ti->oi", wide(dy), act(g) * u)


def _case(name, rng, T, H, I, dtype):
    x, dy = (rng.normal(size=(T, H)).astype(dtype) for _ in range(2))
    w = weights(rng, H, I, dtype)
    values = _passes(x, *w, dy)
    positive = [np.abs(wide(v)) for v in (x, *w, dy)]
    mass = 1 + product(positive[0], positive[1]).max(initial=0.0)
    bounds = _passes(*positive, act=wide, slope=lambda g: SLOPE + 0 * g)
    bounds = (swiglu_magnitude(x, *w), *(b * mass for b in bounds[1:]))
    terms = 2 * swiglu_terms(w[0]) + T
    answers = tuple(
        Expected(v, terms=terms, magnitude=b) for v, b in zip(values, bounds, strict=True)
    )
    budget = T * (H + 2 * I) * x.itemsize
    inputs = tuple(Tensor(v, requires_grad=True) for v in (x, *w))
    return Case(name, (*inputs, Tensor(dy)), (*answers, AtMost(budget), AtMost(0)))


def cases(seed):
    rng = np.random.default_rng(seed)
    T, H, I = (int(n) for n in rng.integers((5, 4, 9), (12, 8, 20)))
    return [
        _case("float32", rng, T, H, I, np.float32),
        _case("float64", rng, T + 3, H, I + 1, np.float64),
        _case("one token", rng, 1, H, I, np.float32),
    ]


def recognise(case: Case, outcome: Outcome):
    if "does not require grad" in outcome.error:
        return "no_graph"
    answer = items(outcome.value, 7)
    if answer is None:
        return None
    *values, kept, elsewhere = answer
    args = [a.array for a in case.args]
    right = case.expected[:-2]
    if not all(near(v, e.value, 1e-2) for v, e in zip(values, right, strict=True)):
        return "slope_one" if near(values[2], _passes(*args, slope=np.ones_like)[2], 1e-2) else None
    (T, H), (I, _), size = args[0].shape, args[1].shape, args[0].itemsize
    if count(elsewhere) > 0:
        return "hidden_on_ctx"
    if count(kept) >= T * (H + EAGER * I) * size:
        return "plain_autograd"
    return "product_kept" if count(kept) >= T * (H + FUSED * I) * size else None
