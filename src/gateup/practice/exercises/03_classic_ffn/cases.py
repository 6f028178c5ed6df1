"""Held-out networks; the oracle in float64, gelu through erfc and tanh-gelu through σ."""

import numpy as np

from gateup.practice.exercise import Case, Expected
from gateup.practice.oracles import SLOPE, gelu, gelu_tanh, product, product_magnitude, relu, wide

ACTS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh}


def _case(name, rng, T, H, act, dtype):
    I = 4 * H
    x = rng.normal(size=(T, H)).astype(dtype)
    w1 = (rng.normal(size=(I, H)) * (2 / H) ** 0.5).astype(dtype)
    w2 = (rng.normal(size=(H, I)) * (2 / I) ** 0.5).astype(dtype)
    b1, b2 = (rng.normal(size=n).astype(dtype) for n in (I, H))

    def ffn(f, bias1=b1, bias2=b2):
        return product(f(product(x, w1) + wide(bias1)), w2) + wide(bias2)

    v = product_magnitude(x, w1) + np.abs(wide(b1))  # of what the activation sees
    magnitude = product_magnitude(SLOPE * v * (1 + v), w2) + np.abs(wide(b2))
    y = ffn(ACTS[act])
    mistakes = {
        "no_bias": ffn(ACTS[act], 0 * b1, 0 * b2),
        "activated_twice": ACTS[act](y),
        "no_activation": ffn(wide),
    }
    if act == "gelu":
        mistakes["tanh_for_erf"] = ffn(gelu_tanh)
    return Case(
        name,
        (x, w1, b1, w2, b2, act),
        Expected(y, terms=H + I + 8, magnitude=magnitude),
        mistakes=mistakes,
    )


def cases(seed):
    rng = np.random.default_rng(seed)
    T, H = (int(n) for n in rng.integers(3, 8, size=2))
    return [
        _case("relu, float32", rng, T, H, "relu", np.float32),
        _case("gelu, float64", rng, T + 1, H, "gelu", np.float64),
        _case("tanh gelu, float32", rng, 2, H + 3, "gelu_tanh", np.float32),
        _case("one token", rng, 1, 1, "gelu", np.float32),
        _case("no token", rng, 0, H, "gelu", np.float32),
    ]
