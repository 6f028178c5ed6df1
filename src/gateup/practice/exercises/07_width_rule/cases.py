"""Widths of known models and held-out ones, in exact fractions."""

from fractions import Fraction
from math import ceil, floor

import numpy as np

from gateup.practice.exercise import Case


def _up(width, multiple):
    return ceil(Fraction(width, multiple)) * multiple


def _case(name, H, multiple, multiplier):
    third = floor(Fraction(8 * H, 3))
    factor = Fraction(multiplier)  # the very double that the rule multiplies with
    width = floor(factor * third)
    return Case(
        name,
        (H, multiple, multiplier),
        _up(width, multiple),
        mistakes={
            "four_thirds": _up(floor(factor * 4 * H), multiple),
            "rounded_down": width // multiple * multiple,
            "not_cut_first": _up(floor(factor * Fraction(8 * H, 3)), multiple),
            "multiplied_last": floor(factor * _up(third, multiple)),
            "always_added": (width // multiple + 1) * multiple,
        },
    )


def cases(seed):
    rng = np.random.default_rng(seed)
    H = 64 * int(rng.integers(9, 60))
    return [
        _case("7B", 4096, 256, 1.0),
        _case("70B", 8192, 4096, 1.3),
        _case("8B", 4096, 1024, 1.3),
        _case("held out", H, 32, 1.5),
        _case("already a multiple", 3072, 256, 1.0),
        # 8·448/3 = 1194.67: cut, it gives 1552; uncut, 1553 and so 1560.
        _case("the cut decides", 448, 8, 1.3),
        _case("smallest", 1, 1, 1.0),
    ]
