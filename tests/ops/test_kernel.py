"""Sizes of zero: no tokens, no width, no inputs, no outputs."""

from __future__ import annotations

import itertools

import pytest
import torch

from gateup.ops.gated_mlp import Weights, gated_mlp
from gateup.ops.options import MLPOptions
from tests.numerics import poisoned
from tests.ops.inputs import NAMES, gradients, plain

SIZES = {
    "no tokens": ((0,), 8, 6, 8),
    "no tokens in three axes": ((3, 0), 8, 6, 8),
    "no inputs": ((2, 3), 0, 6, 4),
    "no width": ((2, 3), 8, 0, 8),
    "no outputs": ((2, 3), 8, 6, 0),
    "nothing but the bias": ((3,), 0, 0, 4),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", SIZES)
def test_as_torch_computes_them(size, dtype):
    lead, hidden, width, out = SIZES[size]
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    shapes = ((width, hidden), (width, hidden), (out, width), (width,), (width,), (out,))
    x, weights, dy = draw(*lead, hidden), [draw(*s) for s in shapes], draw(*lead, out)
    truth = gradients(plain, x, weights, dy)
    for rounding, save, tile in itertools.product(
        ("hf", "wide"), ("all", "gate_up", "input"), (None, 2)
    ):
        options = MLPOptions(rounding=rounding, save=save, tile=tile)
        with poisoned():
            got = gradients(
                lambda x, *w, o=options: gated_mlp(x, Weights(*w), options=o), x, weights, dy, NAMES
            )
        torch.testing.assert_close(got, truth, rtol=2e-2, atol=2e-2)
