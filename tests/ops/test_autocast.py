"""Autocast from float32 weights: the bits of eager torch under the same autocast."""

from __future__ import annotations

import pytest
import torch

from gateup.ops.gated_mlp import Weights, gated_mlp
from gateup.ops.options import MLPOptions
from tests.numerics import assert_as_good
from tests.ops.inputs import H, I, exact, gradients, plain, saved_bytes, tensors

DTYPES = [torch.bfloat16, torch.float16]


def cast(function, dtype):
    def under(*args):
        with torch.autocast("cpu", dtype):
            # As in a model, where x is the output of a norm and not a leaf.
            return function(args[0] * 1.0, *args[1:])

    return under


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("save", ["all", "gate_up", "input"])
def test_bits_of_eager_torch(save, dtype):
    x, weights, dy = tensors(0, torch.float32, (2, 30, H))
    dy = dy.to(dtype)
    options = MLPOptions(save=save)
    ours = gradients(
        cast(lambda x, *w: gated_mlp(x, Weights(*w), options=options), dtype), x, weights, dy
    )
    theirs = gradients(cast(lambda x, *w: plain(x, *w), dtype), x, weights, dy)
    assert ours["y"].dtype == dtype
    assert ours["d_gate"].dtype == torch.float32
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rounding", ["hf", "wide"])
def test_tiled_is_as_good(rounding, dtype):
    options = MLPOptions(rounding=rounding, save="input", tile=25)

    def run(function, how=gradients):
        def at(seed):
            x, weights, dy = tensors(seed, torch.float32, (2, 30, H))
            return how(function, x, weights, dy.to(dtype))

        return at

    ours = cast(lambda x, *w: gated_mlp(x, Weights(*w), options=options), dtype)
    # The reference takes what autocast's GEMMs take: float32 inputs rounded to its dtype.
    truth = lambda x, *w: plain(*(t.to(dtype).double() for t in (x, *w)))  # noqa: E731
    assert_as_good(run(ours), run(cast(plain, dtype)), run(truth, exact))


def test_keeps_no_casts_of_the_weights():
    """Eager torch keeps a copy of each weight in bf16 until backward: 6·H·I bytes a layer."""
    x, weights, _ = tensors(0, torch.float32, (8, H), bias=False)
    w = Weights(*(t.requires_grad_() for t in weights[:3]))
    x.requires_grad_()
    for save, per_token in (("all", 2 * H + 6 * I), ("gate_up", 2 * H + 4 * I), ("input", 2 * H)):
        run = cast(lambda x, s=save: gated_mlp(x, w, options=MLPOptions(save=s)), torch.bfloat16)
        assert saved_bytes(lambda run=run: run(x), w) == 8 * per_token
    stock = cast(lambda x: plain(x, *w), torch.bfloat16)
    assert saved_bytes(lambda: stock(x), w) >= 6 * H * I


def test_the_op_itself_casts():
    x, w, _ = tensors(0, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = torch.ops.gateup.mlp(x, *w, "split", "silu", False, 0, None, [False] * 3)[0]
        assert torch.equal(y, gated_mlp(x, w))
    assert y.dtype == torch.bfloat16


def test_float64_stays():
    x, w, _ = tensors(0, torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        y = gated_mlp(x, w)
    assert y.dtype == torch.float64
    assert torch.equal(y, gated_mlp(x, w))
