"""Held-out blocks; the oracle works number by number in exact fractions and float64.

Values whose x · inv lies close to a half are moved off it, so that a float32 product rounds the
same way in any order of work; exact halves have blocks of their own, with scales that are powers
of two.
"""

import math
from fractions import Fraction

import numpy as np

from gateup.practice.exercise import Case, Expected, Outcome

NEAR = 1e-3  # of a step: 1000 times float32's eps at 127


def _away(v):
    """The nearest integer, halves away from zero."""
    return int(math.copysign(math.floor(abs(v) + Fraction(1, 2)), v))


def _even(v):
    return round(v)


def _block(row, bits, nearest=_away, steps=127, signed=True, rounded=True, pairs=16):
    """Scale (float16), stored integers and values of one block."""
    largest = max(row, key=abs)
    d = np.float32(abs(largest)) / np.float32(steps)
    if bits == 4:
        d = np.float32(largest if signed else -abs(largest)) / np.float32(-8)
    inv = Fraction(float(np.float32(1) / d)) if d else Fraction(0)
    scaled = [Fraction(v) * inv for v in row]
    if bits == 8:
        n = [max(-128, min(127, nearest(v))) for v in scaled]
        stored = n
    else:
        n = [min(15, math.floor(v + Fraction(17, 2))) - 8 for v in scaled]
        if pairs == 16:
            stored = [(n[j] + 8) + 16 * (n[j + 16] + 8) for j in range(16)]
        else:
            stored = [(n[2 * j] + 8) + 16 * (n[2 * j + 1] + 8) for j in range(16)]
    step = np.float16(d) if rounded else d
    return np.float16(d), stored, [float(np.float32(v) * np.float32(step)) for v in n]


def blocks(x, bits, **how):
    """(d, q, back) of every block."""
    made = [_block([float(v) for v in row], bits, **how) for row in x]
    kind = np.int8 if bits == 8 else np.uint8
    return (
        np.array([d for d, _, _ in made], dtype=np.float16),
        np.array([q for _, q, _ in made], dtype=kind).reshape(len(x), 32 if bits == 8 else 16),
        np.array([back for _, _, back in made], dtype=np.float32).reshape(len(x), 32),
    )


def _off_halves(x, bits):
    """x with every value that lies near a half moved by a fifth of a step."""
    x = x.astype(np.float32)
    peak = np.abs(x).max(axis=-1, keepdims=True)
    step = peak / np.float32(127 if bits == 8 else 8)
    scaled = x / np.where(step > 0, step, 1)
    off = np.abs(np.abs(scaled - np.floor(scaled)) - 0.5) < NEAR
    inside = np.abs(x) < peak
    return np.where(off & inside, x - np.sign(x) * step / 5, x).astype(np.float32)


def _case(name, x, bits):
    x = np.asarray(x, dtype=np.float32)
    d, q, back = blocks(x, bits)
    mistakes = {"unrounded_scale": blocks(x, bits, rounded=False)}
    if bits == 8:
        mistakes["half_to_even"] = blocks(x, bits, nearest=_even)
        mistakes["divided_by_128"] = blocks(x, bits, steps=128)
    else:
        mistakes["sign_lost"] = blocks(x, bits, signed=False)
        mistakes["neighbours_packed"] = blocks(x, bits, pairs=2)
    answer = (Expected(d, "float16", terms=0), q, Expected(back, "float32", terms=0))
    return Case(name, (x, bits), answer, mistakes)


def cases(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 7))
    x8 = _off_halves(rng.normal(size=(n, 32)) * 0.05, 8)
    x4 = _off_halves(rng.normal(size=(n, 32)) * 0.05, 4)
    x4[0] *= np.sign(max(x4[0], key=abs))  # a positive peak: its scale is negative
    halves = rng.integers(-126, 126, size=(2, 32)) + 0.5
    halves[:, 0] = 127  # the scale is then 1, or 1/4, exactly
    halves[1] /= 4
    zeros = np.zeros((2, 32))
    zeros[1] = _off_halves(rng.normal(size=(1, 32)), 8)[0]
    return [
        _case("8 bits", x8, 8),
        _case("8 bits, exact halves", halves, 8),
        _case("4 bits", x4, 4),
        _case("8 bits, a block of zeros", zeros, 8),
        _case("4 bits, a block of zeros", _off_halves(zeros, 4), 4),
        _case("no block", np.zeros((0, 32)), 8),
    ]


def recognise(case: Case, outcome: Outcome):
    return "zero_block" if "divide by zero" in outcome.error else None
