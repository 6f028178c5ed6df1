"""Held-out gradients; the oracle steps each element by i·h and reads the imaginary part.

L(z + i·h) = L(z) + i·h·L'(z) − …: no difference is taken, so L' keeps all its digits.
"""

import numpy as np

from gateup.practice.exercise import Case, Expected
from gateup.practice.oracles import (
    SLOPE,
    product,
    sigmoid,
    silu,
    silu_slope,
    swiglu_terms,
    weights,
    wide,
)

STEP = 1e-40


def _loss(dy, x, w_gate, w_up, w_down):
    g = np.einsum("th,ih->ti", x, w_gate)
    p = g / (1 + np.exp(-g)) * np.einsum("th,ih->ti", x, w_up)
    return np.einsum("th,ti,hi->", dy, p, w_down)


def gradients(dy, *inputs):
    """∂L/∂ of each input by complex steps, in float64."""
    z = [wide(v).astype(complex) for v in inputs]
    out = []
    for v in z:
        grad = np.zeros(v.shape)
        for at in np.ndindex(v.shape):
            v[at] += 1j * STEP
            grad[at] = _loss(wide(dy), *z).imag / STEP
            v[at] = v[at].real
        out.append(grad)
    return out


def _formulas(dy, x, w_gate, w_up, w_down, slope=silu_slope, act=silu, magnitude=False):
    """The gradients by formula, for what mistakes give; `magnitude`: of absolute values."""
    if magnitude:
        dy, x, w_gate, w_up, w_down = (np.abs(wide(v)) for v in (dy, x, w_gate, w_up, w_down))
    g, u = product(x, w_gate), product(x, w_up)
    dp = product(dy, w_down.T)
    du, dg = dp * act(g), dp * u * slope(g)
    dx = (product(dg, w_gate.T), product(du, w_up.T))
    x_rows = wide(x).T
    return dx, product(dg.T, x_rows), product(du.T, x_rows), product(wide(dy).T, (silu(g) * u).T)


def _case(name, rng, T, H, I, dtype):
    x, dy = (rng.normal(size=(T, H)).astype(dtype) for _ in range(2))
    w = weights(rng, H, I, dtype)
    args = (dy, x, *w)
    right = gradients(*args)

    def variant(n=1.0, both=True, **changed):
        dx, *dw = _formulas(*args, **changed)
        return (dx[0] + dx[1] if both else dx[0], *(v / n for v in dw))

    mass = 1 + product(np.abs(wide(x)), np.abs(wide(w[0]))).max(initial=0.0)
    dx, *dw = _formulas(*args, slope=lambda g: SLOPE + 0 * g, act=wide, magnitude=True)
    bounds = (dx[0] + dx[1], *dw)
    terms = 2 * swiglu_terms(w[0]) + T
    return Case(
        name,
        args,
        tuple(
            Expected(v, terms=terms, magnitude=b * mass) for v, b in zip(right, bounds, strict=True)
        ),
        mistakes={
            "slope_one": variant(slope=np.ones_like),
            "sigmoid_slope": variant(slope=sigmoid),
            "one_path": variant(both=False),
            "bare_gate": variant(act=wide),
            "mean": variant(n=max(T, 1)),
        },
    )


def cases(seed):
    rng = np.random.default_rng(seed)
    T, H, I = (int(n) for n in rng.integers((2, 3, 4), (5, 5, 7)))
    return [
        _case("float64", rng, T, H, I, np.float64),
        _case("float32", rng, T + 1, H, I + 1, np.float32),
        _case("one token", rng, 1, H, I, np.float64),
        _case("no token", rng, 0, H, I, np.float32),
    ]
