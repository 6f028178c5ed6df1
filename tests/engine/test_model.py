"""The torch decoder against transformers, of every family: float32 weights, windows exceeded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from gateup.engine.cache import KVCache
from gateup.engine.decoder import prefill
from gateup.engine.loading import load
from gateup.engine.model import TorchDecoder
from gateup.errors import UsageError
from gateup.files.checkpoint import open_model
from tests.engine.models import MODELS, ids_of, random_model, saved

LENGTH = 24  # three windows of 8, more than the original contexts of 16


def decoder(folder: Path, context: int) -> TorchDecoder:
    loaded = load(open_model(folder), context)
    return TorchDecoder(loaded.config, loaded.weights)


def logits_of(made: TorchDecoder, ids: torch.Tensor) -> torch.Tensor:
    cache = KVCache(made.config, ids.shape[1], ids.shape[0], torch.float32)
    return made.forward(ids, cache, every=True)


@torch.no_grad()
def true_logits(model: PreTrainedModel, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """transformers' logits of float32, and in float64 of the same weights."""
    plain = model(ids).logits
    return plain, model.double()(ids).logits


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """No further from float64 than twice transformers' own float32."""
    model = random_model(name)
    length = 12 if name == "phi3, short" else LENGTH
    ids = ids_of(length, 2)
    made = decoder(saved(model, tmp_path), length)
    plain, exact = true_logits(model, ids)
    ours = logits_of(made, ids)
    assert float(exact.std()) > 0.05  # there is something to tell apart
    error, theirs = (ours - exact).norm(), (plain - exact).norm()
    assert float(error) <= 2 * float(theirs), (name, float(error), float(theirs))


@pytest.fixture(scope="module", params=["gemma2", "qwen2", "mixtral"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchDecoder:
    """Windows with softcaps; windows with biases; experts."""
    folder = tmp_path_factory.mktemp("model")
    return decoder(saved(random_model(request.param), folder), LENGTH)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    """Equal to the rounding of float32 sums in another order."""
    assert float((a - b).abs().max()) <= 1e-5 * float(b.abs().max())


def test_one_by_one_is_all_at_once(made: TorchDecoder) -> None:
    ids = ids_of(LENGTH)
    cache = KVCache(made.config, LENGTH, 1, torch.float32)
    steps = [made.forward(ids[:, t : t + 1], cache) for t in range(LENGTH)]
    close(torch.cat(steps), logits_of(made, ids)[0])
    assert cache.lengths == [LENGTH]


def test_chunks_are_all_at_once(made: TorchDecoder) -> None:
    ids = ids_of(LENGTH)
    whole = logits_of(made, ids)[0]
    for chunk in (5, 11):
        cache = KVCache(made.config, LENGTH, 1, torch.float32)
        close(prefill(made, ids[0].tolist(), cache, 0, chunk), whole[-1])


def test_sequences_of_other_lengths_do_not_meet(made: TorchDecoder) -> None:
    """Rows 2 and 0 of a cache of three, at different positions, decoded together."""
    long, short = ids_of(LENGTH)[0], ids_of(9, seed=2)[0]
    cache = KVCache(made.config, LENGTH, 3, torch.float32)
    prefill(made, long[:-1].tolist(), cache, 2)
    prefill(made, short[:-1].tolist(), cache, 0)
    both = made.forward(torch.stack([long[-1:], short[-1:]]), cache, [2, 0])
    close(both[0], logits_of(made, long[None])[0, -1])
    close(both[1], logits_of(made, short[None])[0, -1])
    assert cache.lengths == [9, 0, LENGTH]


def test_what_was_truncated_is_forgotten(made: TorchDecoder) -> None:
    ids = ids_of(LENGTH)
    cache = KVCache(made.config, LENGTH, 1, torch.float32)
    made.forward(ids_of(LENGTH, seed=3), cache)
    cache.truncate(0, 0)
    close(made.forward(ids, cache), logits_of(made, ids)[:, -1])


def test_a_float16_cache_errs_as_float16_does(made: TorchDecoder) -> None:
    """2^-11 per key and value, through a softmax over at most 24 of them."""
    ids = ids_of(LENGTH)
    exact = logits_of(made, ids)
    rounded = made.forward(ids, KVCache(made.config, LENGTH), every=True)
    error = float((rounded - exact).norm() / exact.norm())
    assert 0 < error < 2**-9


@pytest.mark.parametrize(
    ("ids", "rows", "says"),
    [
        (torch.tensor([[96]]), [0], "token 96 is outside the model's vocabulary of 96"),
        (torch.tensor([[-1]]), [0], "token -1 is outside"),
        (torch.zeros(1, 5, dtype=torch.int64), [0], "5 tokens do not fit into a context of 4"),
        (torch.zeros(1, 0, dtype=torch.int64), [0], "no tokens were given"),
        (torch.zeros(2, 1, dtype=torch.int64), [0, 0], "2 sequences for rows [0, 0]"),
        (torch.zeros(1, 1, dtype=torch.int64), [1], "1 sequences for rows [1]"),
    ],
)
def test_calls_that_do_not_fit(
    made: TorchDecoder, ids: torch.Tensor, rows: list[int], says: str
) -> None:
    cache = KVCache(made.config, 4)
    with pytest.raises(UsageError) as raised:
        made.forward(ids, cache, rows)
    assert says in str(raised.value)
    assert cache.lengths == [0]
