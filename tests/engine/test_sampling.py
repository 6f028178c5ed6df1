"""The next token: cuts as transformers makes them, drawn with the probabilities they leave."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from gateup.engine.sampling import Sampler, Sampling, StopTexts, candidates, penalised
from gateup.errors import UsageError


def logits(seed: int, size: int = 3000) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 4


def theirs(scores: torch.Tensor, seen: list[int], s: Sampling) -> torch.Tensor:
    """Probabilities [V] after transformers' processors, in the order its generate has them."""
    steps: list[Any] = [RepetitionPenaltyLogitsProcessor(s.repeat_penalty)] if seen else []
    steps += [TemperatureLogitsWarper(s.temperature)]
    steps += [TopKLogitsWarper(s.top_k)] if s.top_k else []
    steps += [TopPLogitsWarper(s.top_p)] if s.top_p < 1 else []
    steps += [MinPLogitsWarper(s.min_p)] if s.min_p else []
    ids = torch.tensor([seen], dtype=torch.int64)
    return LogitsProcessorList(steps)(ids, scores[None].clone())[0].softmax(0)


@pytest.mark.parametrize(
    "s",
    [
        Sampling(temperature=0.7),
        Sampling(temperature=1.3, top_k=40),
        Sampling(temperature=1.0, top_p=0.9),
        Sampling(temperature=9.0, top_p=0.99),  # more than the first candidates are needed
        Sampling(temperature=0.8, min_p=0.05),
        Sampling(temperature=9.0, min_p=0.05),
        Sampling(temperature=0.9, top_k=50, top_p=0.8, min_p=0.02, repeat_penalty=1.3),
        Sampling(temperature=1.0, top_k=1),
        Sampling(temperature=1.0, top_k=5000),
    ],
)
def test_probabilities_are_those_of_transformers(s: Sampling) -> None:
    for seed in range(3):
        scores = logits(seed)
        seen = [5, 5, *scores.topk(3).indices.tolist()] if s.repeat_penalty != 1 else []
        expected = theirs(scores, seen, s)
        ours = torch.zeros_like(expected, dtype=torch.float64)
        shares, tokens = candidates(
            penalised(scores, seen, s.repeat_penalty) if seen else scores, s
        )
        ours[tokens] = shares
        assert bool(((ours > 0) == (expected > 0)).all())
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-7, check_dtype=False)


def test_greedy_is_the_argmax_and_penalties_move_it() -> None:
    scores = torch.tensor([1.0, 3.0, 2.9, -1.0])
    assert Sampler(Sampling())(scores) == 1
    assert Sampler(Sampling(repeat_penalty=1.2))(scores, [1]) == 2
    assert penalised(scores, [1, 3], 2.0).tolist() == pytest.approx([1.0, 1.5, 2.9, -2.0])


@pytest.mark.parametrize(
    "s",
    [
        *({"temperature": t} for t in (5e-324, 1e-300, 1e-40, 1e-9)),
        {"temperature": 1.0, "top_p": 1e-300},
        {"temperature": 1.0, "top_p": 5e-324, "top_k": 9, "min_p": 1.0},
        {"temperature": 1e-300, "top_p": 0.9, "min_p": 1e-300},
    ],
)
def test_the_smallest_values_are_greedy(s: dict[str, float]) -> None:
    for scores in (logits(1), -logits(2).abs(), torch.zeros(9).index_fill(0, torch.tensor([3]), 1)):
        sampler = Sampler(Sampling(**s, seed=1))  # type: ignore[arg-type]
        assert [sampler(scores) for _ in range(5)] == [int(scores.argmax())] * 5


def test_the_largest_values_draw_from_all() -> None:
    scores = logits(1, 5)
    for penalty in (1e-300, 1.0, 1e300):
        sampler = Sampler(Sampling(temperature=1e300, repeat_penalty=penalty, seed=2))
        drawn = {sampler(scores, [0, 1, 2, 3, 4]) for _ in range(100)}
        assert drawn == set(range(5)) if penalty == 1 else drawn
    assert bool(penalised(scores, [0, 1, 2], 5e-324).isfinite().all())


def test_draws_follow_the_probabilities() -> None:
    """4,000 draws: each share within five standard deviations, √(p(1 - p)/n)."""
    scores = torch.tensor([0.0, 1.0, 2.0])
    sampler = Sampler(Sampling(temperature=1.0, seed=3))
    counts = torch.bincount(torch.tensor([sampler(scores) for _ in range(4000)]), minlength=3)
    p = scores.softmax(0)
    assert bool(((counts / 4000 - p).abs() < 5 * (p * (1 - p) / 4000).sqrt()).all())


def test_a_seed_repeats_and_another_does_not() -> None:
    scores = logits(1)

    def draws(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(temperature=2.0, seed=seed))
        return [sampler(scores) for _ in range(20)]

    assert draws(7) == draws(7)
    assert draws(7) != draws(8)
    assert draws(None) != draws(None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_p": 1.5}, "above 0, at most 1"),
        ({"min_p": 2}, "min_p is 2"),
        ({"repeat_penalty": 0}, "repeat_penalty is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"stop": ("",)}, "a stop text is empty"),
    ],
)
def test_values_out_of_range(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as raised:
        Sampling(**changes)
    assert says in str(raised.value)


def run(stop: tuple[str, ...], *pieces: str) -> tuple[list[str], bool]:
    stops = StopTexts(stop)
    out = []
    for piece in pieces:
        text, stopped = stops.push(piece)
        out.append(text)
        if stopped:
            return out, True
    return [*out, stops.finish()], False


def test_stop_texts_across_pieces() -> None:
    assert run(("END",), "a", "bE", "N", "Dc") == (["a", "b", "", ""], True)
    assert run(("END",), "aE", "Nx", "E") == (["a", "ENx", "", "E"], False)
    assert run(("aab",), "aa", "ab", "b") == (["", "a"], True)
    assert run(("yy", "xyz"), "wx", "y", "y") == (["w", "", "x"], True)
    assert run((), "a", "b") == (["a", "b", ""], False)
