"""The cases' definitions against torch's, their error bounds, and recognisers fed with anything."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from gateup.practice import oracles
from gateup.practice.exercise import Exercise, Outcome, exercises

HOSTILE: tuple[Any, ...] = (
    None,
    "text",
    7,
    float("nan"),
    np.zeros(3),
    np.full((2, 3), np.nan),
    np.zeros((0, 0), dtype=np.int8),
    np.array(True),
    [],
    *(tuple([item] * n) for n in (2, 3, 4, 5, 7) for item in (None, "x", 1, True, np.ones((3, 2)))),
    *(tuple([np.zeros((5, 5))] * (n - 1) + [10**400]) for n in (2, 3, 4, 7)),
)


def test_activations_and_the_block_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    from gateup.ops.reference import gated_mlp

    F = torch.nn.functional
    x = torch.linspace(-30, 30, 241, dtype=torch.float64)
    for mine, theirs in (
        (oracles.silu, F.silu),
        (oracles.gelu, F.gelu),
        (oracles.gelu_tanh, lambda v: F.gelu(v, approximate="tanh")),
        (oracles.relu, F.relu),
        (oracles.sigmoid, torch.sigmoid),
    ):
        np.testing.assert_allclose(mine(x.numpy()), theirs(x).numpy(), rtol=1e-12, atol=1e-15)
    x.requires_grad_()
    F.silu(x).sum().backward()
    slope = oracles.silu_slope(x.detach().numpy())
    np.testing.assert_allclose(slope, x.grad.numpy(), rtol=1e-12, atol=1e-15)

    w = oracles.weights(np.random.default_rng(0), 6, 11)
    rows = np.random.default_rng(1).normal(size=(4, 6))
    theirs = gated_mlp(*(torch.from_numpy(v) for v in (rows, *w)))
    np.testing.assert_allclose(oracles.swiglu(rows, *w), theirs.numpy(), rtol=1e-12)


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_the_bound_holds_for_float32_and_not_for_a_wrong_answer(scale: float) -> None:
    rng = np.random.default_rng(2)
    w = oracles.weights(rng, 24, 40, np.float32)
    x = (rng.normal(size=(16, 24)) * scale).astype(np.float32)
    bound = oracles.swiglu_terms(w[0]) * np.finfo(np.float32).eps
    bound = bound * oracles.swiglu_magnitude(x, *w)
    gate = x @ w[0].T
    y = (gate * 0.5 * (1 + np.tanh(gate / 2)) * (x @ w[1].T)) @ w[2].T
    right = oracles.swiglu(x, *w)
    assert (np.abs(y - right) <= bound).all()
    for wrong in (oracles.swiglu(x, w[1], w[0], w[2]), oracles.swiglu(x, *w, act=oracles.relu)):
        assert (np.abs(wrong - right) > bound).mean() > 0.9


@pytest.mark.parametrize("exercise", exercises(), ids=lambda e: e.name)
def test_no_answer_upsets_a_recogniser(exercise: Exercise) -> None:
    if exercise.needs == "torch" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    recognise = exercise.recogniser()
    if recognise is None:
        return
    for case in exercise.cases(4):
        answers = [*HOSTILE, case.expected, case.args]
        for value in answers:
            named = recognise(case, Outcome("wrong value", value))
            assert named is None or named in exercise.mistakes
