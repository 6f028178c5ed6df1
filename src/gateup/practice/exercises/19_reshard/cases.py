"""Held-out models, cut for both numbers of ranks by gateup's layout algebra; moves are exact."""

import numpy as np

from gateup.model.layout import GateUpLayout, join, shard
from gateup.practice.exercise import Case, Expected

GATE_FIRST = GateUpLayout("concat")
UP_FIRST = GateUpLayout("concat", order="up_gate")


def _ranks(gate, up, tp, layout=GATE_FIRST):
    whole = {"gate_up": join(gate, up, layout)}
    return np.stack([shard(whole, layout, tp, rank)["gate_up"] for rank in range(tp)])


def _case(name, rng, H, I, old, tp, dtype):
    gate, up = (rng.normal(size=(I, H)).astype(dtype) for _ in range(2))
    down = rng.normal(size=(H, I)).astype(dtype)
    before = _ranks(gate, up, old), np.stack(np.split(down, old, axis=1))
    right = _ranks(gate, up, tp), np.stack(np.split(down, tp, axis=1))
    joined = np.stack(np.split(np.concatenate(before[0]), tp))
    return Case(
        name,
        (*before, tp),
        tuple(Expected(v, terms=0) for v in right),
        mistakes={
            "rows_joined": (joined, right[1]),
            "down_untransposed": (right[0], before[1].reshape(right[1].shape)),
            "up_first": (_ranks(gate, up, tp, UP_FIRST), right[1]),
        },
    )


def cases(seed):
    rng = np.random.default_rng(seed)
    H, n = (int(v) for v in rng.integers((2, 1), (7, 5)))
    return [
        _case("two to four", rng, H, 4 * n, 2, 4, np.float32),
        _case("four to one", rng, H, 4 * n, 4, 1, np.float16),
        _case("one to two", rng, H, 2 * n, 1, 2, np.float32),
        _case("two to three", rng, H, 6 * n, 2, 3, np.float32),
        _case("four to four", rng, H, 8 * n, 4, 4, np.float16),
    ]
