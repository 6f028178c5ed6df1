"""The torch decoder against transformers, of every family: float32 weights, windows exceeded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from gateup.engine.cache import KVCache
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
