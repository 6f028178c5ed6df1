"""Real and held-out machines, in exact fractions."""

from fractions import Fraction
from math import ceil, inf

import numpy as np

from gateup.practice.exercise import Case, Expected


def roof(T, H, I, itemsize, peak, bandwidth, weights=1, vectors=2, join=max):
    """FLOPs, bytes, seconds, ridge; the keywords say how often what is read."""
    flops = 6 * T * H * I
    nbytes = itemsize * (weights * 3 * H * I + vectors * T * H)
    seconds = join(Fraction(flops) / Fraction(peak), Fraction(nbytes) / Fraction(bandwidth))
    gain = Fraction(6 * H * I) / Fraction(peak)
    gain -= Fraction(vectors * H * itemsize) / Fraction(bandwidth)
    fixed = Fraction(3 * H * I * itemsize) / Fraction(bandwidth)
    ridge = ceil(fixed / gain) if gain > 0 else inf
    return np.array([flops, nbytes, float(seconds), ridge], dtype=np.float64)


def _case(name, *args):
    T, H, I, itemsize, peak, bandwidth = args
    right = roof(*args)
    naive = right.copy()
    naive[3] = ceil(Fraction(peak) * itemsize / (2 * Fraction(bandwidth)))
    every = roof(*args, weights=T)
    return Case(
        name,
        args,
        Expected(right, terms=8),
        mistakes={
            "summed": roof(*args, join=lambda a, b: a + b),
            "weights_per_token": every,
            "elements": roof(T, H, I, 1, peak, bandwidth),
            "weights_only": roof(*args, vectors=0),
            "naive_ridge": naive,
        },
    )


def cases(seed):
    rng = np.random.default_rng(seed)
    T, wide, peak, speed = (int(n) for n in rng.integers((2, 3, 20, 90), (99, 40, 900, 3000)))
    return [
        _case("one token", 1, 4096, 14336, 2, 100e12, 1e12),
        _case("a prompt", 4096, 4096, 14336, 2, 100e12, 1e12),
        _case("held out", T, 128, 64 * wide + 32, 2, peak * 1e12, speed * 1e9),
        _case("a CPU in float32", T, 576, 1536, 4, 150e9, 20e9),
        _case("the bytes always decide", T, 1024, 96, 4, 900e12, 1e12),
    ]
