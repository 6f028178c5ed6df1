"""Held-out adapters; the oracle merges in float64 by einsum and runs the merged matrix."""

import numpy as np

from gateup.practice.exercise import Case, Expected
from gateup.practice.oracles import product, product_magnitude, wide


def _case(name, rng, shape, alpha, rslora, dtype, zero=False):
    T, n_in, n_out, r = shape
    x, w, a = (rng.normal(size=s).astype(dtype) for s in ((T, n_in), (n_out, n_in), (r, n_in)))
    b = (rng.normal(size=(n_out, r)) * (not zero)).astype(dtype)

    def answer(scale, times=1, of_merged=None):
        delta = np.einsum("or,ri->oi", wide(b), wide(a))
        merged = wide(w) + (scale if of_merged is None else of_merged) * delta
        return product(x, wide(w) + times * scale * delta), merged

    power = 0.5 if rslora else 1.0
    scale = alpha / r**power
    y, merged = answer(scale)
    thin = scale * np.einsum("or,ri->oi", np.abs(wide(b)), np.abs(wide(a)))
    heavy = np.abs(wide(w)) + thin
    mistakes = {
        "alpha_alone": answer(alpha),
        "rslora_ignored" if rslora else "always_root": answer(alpha / r ** (1.5 - power)),
        "merged_unscaled": answer(scale, of_merged=1.0),
        "added_twice": (answer(scale, times=2)[0], merged),
    }
    return Case(
        name,
        (x, w, a, b, alpha, rslora),
        (
            Expected(y, terms=n_in + r + 4, magnitude=product_magnitude(x, heavy)),
            Expected(merged, terms=r + 4, magnitude=heavy),
        ),
        mistakes,
    )


def cases(seed):
    rng = np.random.default_rng(seed)
    T, n_in, n_out, r = (int(n) for n in rng.integers((2, 8, 5, 2), (7, 15, 12, 5)))
    shape = (T, n_in, n_out, r)
    return [
        _case("alpha / r", rng, shape, 16.0, False, np.float32),
        _case("rsLoRA, float64", rng, (T, n_in, n_out, r + 1), 7.0, True, np.float64),
        _case("rank one", rng, (T, n_in, n_out, 1), 2.0, False, np.float32),
        _case("an untrained adapter", rng, shape, 32.0, True, np.float32, zero=True),
        _case("no token", rng, (0, n_in, n_out, r), 8.0, False, np.float32),
    ]
