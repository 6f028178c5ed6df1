"""Held-out matrices; merged layouts come from gateup's layout algebra."""

import numpy as np

from gateup.model.layout import GateUpLayout, join
from gateup.practice.exercise import Case, Expected
from gateup.practice.oracles import (
    product,
    product_magnitude,
    silu,
    swiglu,
    swiglu_magnitude,
    swiglu_terms,
    weights,
)


def _case(name, rng, T, H, I, dtype):
    x = rng.normal(size=(T, H)).astype(dtype)
    w_gate, w_up, w_down = w = weights(rng, H, I, dtype)

    def answer(layout, y):
        fused = join(w_gate, w_up, layout)
        return (fused, product(x, fused), y)

    y = swiglu(x, *w)
    fused, g, _ = answer(GateUpLayout("concat"), y)
    magnitude = swiglu_magnitude(x, *w)
    activated = silu(g)
    both = product(activated[:, :I] * activated[:, I:], w_down)
    return Case(
        name,
        (x, *w),
        (
            Expected(fused, terms=0),
            Expected(g, terms=H, magnitude=product_magnitude(x, fused)),
            Expected(y, terms=swiglu_terms(w_gate), magnitude=magnitude),
        ),
        mistakes={
            "up_first": answer(GateUpLayout("concat", order="up_gate"), y),
            "exchanged": answer(
                GateUpLayout("concat", order="up_gate"), swiglu(x, w_up, w_gate, w_down)
            ),
            "interleaved": answer(GateUpLayout("interleaved"), y),
            "halves_swapped": (fused, g, swiglu(x, w_up, w_gate, w_down)),
            "activated_g": (fused, activated, both),
        },
    )


def cases(seed):
    rng = np.random.default_rng(seed)
    T, H, I = (int(n) for n in rng.integers((2, 3, 5), (7, 9, 14)))
    return [
        _case("float32", rng, T, H, I, np.float32),
        _case("float64, odd width", rng, T, H, 2 * I + 1, np.float64),
        _case("one token", rng, 1, H, I, np.float32),
        _case("no token", rng, 0, H, I, np.float32),
    ]
