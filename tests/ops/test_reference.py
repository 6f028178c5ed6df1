"""The reference against formulas written out by hand, and its derivatives of both orders."""

from __future__ import annotations

import math

import pytest
import torch

from gateup.ops import reference
from gateup.ops.activations import ACTIVATIONS
from tests.ops.inputs import plain, tensors


def test_one_token_by_hand():
    x = torch.tensor([2.0, -1.0], dtype=torch.float64)
    gate, up = torch.tensor([[1.0, 3.0]]).double(), torch.tensor([[0.5, -1.0]]).double()
    down = torch.tensor([[2.0], [-3.0]]).double()
    g, u = 2.0 - 3.0, 1.0 + 1.0
    h = g / (1 + math.exp(-g)) * u
    y = reference.gated_mlp(x, gate, up, down, down_bias=torch.tensor([0.0, 1.0]).double())
    assert y.tolist() == pytest.approx([2 * h, -3 * h + 1], rel=1e-15)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_gradgradcheck(act):
    x, weights, _ = tensors(0, torch.float64, (3, 3), width=4)
    inputs = [t.requires_grad_() for t in (x, *weights)]
    function = lambda x, *w: plain(x, *w, act=act)  # noqa: E731
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_classic_gradgradcheck():
    x, w, _ = tensors(0, torch.float64, (3, 3), width=4)
    inputs = [t.requires_grad_() for t in (x, w.gate, w.down, w.gate_bias, w.down_bias)]
    assert torch.autograd.gradgradcheck(reference.classic_ffn, inputs)
