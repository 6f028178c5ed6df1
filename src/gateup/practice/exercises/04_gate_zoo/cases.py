"""Held-out pairs of gate and up for every kind."""

import numpy as np

from gateup.practice.exercise import Case, Expected
from gateup.practice.oracles import gelu, gelu_tanh, relu, sigmoid, silu, wide

ACTS = {
    "swiglu": silu,
    "geglu": gelu,
    "geglu_tanh": gelu_tanh,
    "reglu": relu,
    "glu": sigmoid,
    "bilinear": wide,
}


def _gpt_oss(a, b, low=-np.inf, offset=1.0):
    a = np.clip(wide(a), low, 7)
    return a * sigmoid(1.702 * a) * (np.clip(wide(b), -7, 7) + offset)


def _case(name, kind, a, b):
    if kind == "gpt_oss":
        value, swapped = _gpt_oss(a, b), _gpt_oss(b, a)
        mistakes = {
            "swapped": swapped,
            "clamped_both": _gpt_oss(a, b, low=-7),
            "no_plus_one": _gpt_oss(a, b, offset=0.0),
        }
    else:
        act = ACTS[kind]
        value = act(a) * wide(b)
        mistakes = {"swapped": act(b) * wide(a)}
        if kind == "geglu":
            mistakes["one_gelu"] = gelu_tanh(a) * wide(b)
    v, u = np.abs(wide(a)), np.abs(wide(b))
    # 0.5·(1 + tanh) cancels in the left tail: the error there is that of a·b, not of the answer.
    # The activation's argument carries its own rounding, up to where the tail is flat.
    magnitude = (v + (kind == "glu")) * (u + (kind == "gpt_oss")) * (1 + np.minimum(v, 9))
    return Case(name, (kind, a, b), Expected(value, terms=8, magnitude=magnitude), mistakes)


def cases(seed):
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(3, 8))

    def pair(dtype, scale=2.0):
        return [(rng.normal(size=(rows, 5)) * scale).astype(dtype) for _ in range(2)]

    made = [
        _case(kind, kind, *pair(np.float64 if "gelu" in kind or kind == "geglu" else np.float32))
        for kind in ACTS
    ]
    made += [
        _case("gpt_oss", "gpt_oss", *pair(np.float64)),
        _case("gpt_oss beyond the clamp", "gpt_oss", *pair(np.float64, 9.0)),
    ]
    far = np.array([-1e4, -100, -20, -8, 8, 20, 100, 1e4], dtype=np.float32)
    made += [_case(f"{kind}, far out", kind, far, far[::-1].copy()) for kind in ("glu", "swiglu")]
    empty = np.zeros((0, 3), dtype=np.float32)
    return [*made, _case("empty", "swiglu", empty, empty)]
