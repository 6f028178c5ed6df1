"""Gradient checkpointing around the MLP, of both kinds: the same gradients, only x kept."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from gateup.ops.gated_mlp import Weights, gated_mlp
from gateup.ops.options import MLPOptions
from tests.ops.inputs import H, gradients, saved_bytes, tensors

OPTIONS = [
    MLPOptions(rounding=rounding, save=save, tile=tile)
    for rounding, save, tile in itertools.product(
        ("hf", "wide"), ("all", "gate_up", "input"), (None, 10)
    )
]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_same_gradients(options, reentrant):
    x, weights, dy = tensors(0, torch.bfloat16)
    bare = lambda x, *w: gated_mlp(x, Weights(*w), options=options)  # noqa: E731
    ours = gradients(lambda *t: checkpoint(bare, *t, use_reentrant=reentrant), x, weights, dy)
    for name, value in gradients(bare, x, weights, dy).items():
        assert torch.equal(ours[name], value), name


def test_only_the_input_is_kept():
    x, weights, _ = tensors(0, torch.bfloat16, (16, H))
    leaf = [t.requires_grad_() for t in (x, *weights)]

    def run():
        return checkpoint(lambda x: gated_mlp(x, Weights(*leaf[1:])), x, use_reentrant=False)

    # The non-reentrant kind keeps its argument outside of autograd: nothing is saved at all.
    assert saved_bytes(run, leaf[1:]) <= 2 * 16 * H
