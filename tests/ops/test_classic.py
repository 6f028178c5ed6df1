"""The classic feed-forward network, with the options of the gated one."""

from __future__ import annotations

import itertools

import pytest
import torch

from gateup.errors import UsageError
from gateup.ops import reference
from gateup.ops.classic import classic_ffn
from gateup.ops.options import MLPOptions
from tests.numerics import assert_as_good
from tests.ops.inputs import H, I, exact, gradients, saved_bytes, tensors

NAMES = ("w1", "w2", "b1", "b2")
PARTS = ("gate", "down", "gate_bias", "down_bias")


def runs(options, dtype, act="gelu"):
    def at(how, function):
        def run(seed):
            x, w, dy = tensors(seed, dtype, (2, 30, H))
            return how(function, x, [getattr(w, p) for p in PARTS], dy, NAMES)

        return run

    ours = lambda *t: classic_ffn(*t, act=act, options=options)  # noqa: E731
    plain = lambda *t: reference.classic_ffn(*t, act=act)  # noqa: E731
    return at(gradients, ours), at(gradients, plain), at(exact, plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tile", [None, 25])
@pytest.mark.parametrize("rounding", ["hf", "wide"])
def test_as_good_as_plain_torch(rounding, tile, dtype):
    for save in ("all", "gate_up", "input"):
        assert_as_good(*runs(MLPOptions(rounding=rounding, save=save, tile=tile), dtype))


@pytest.mark.parametrize("act", ["gelu", "gelu_tanh", "relu", "silu", "sigmoid", "identity"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_hf_rounding_has_the_bits_of_eager_torch(dtype, act):
    for save in ("all", "gate_up", "input"):
        ours, plain, _ = runs(MLPOptions(save=save), dtype, act)
        for name, value in plain(0).items():
            assert torch.equal(ours(0)[name], value), name


def test_a_wrong_activation_fails():
    ours, _, _ = runs(MLPOptions(tile=25), torch.bfloat16, "relu")
    _, plain, truth = runs(MLPOptions(), torch.bfloat16)
    with pytest.raises(AssertionError):
        assert_as_good(ours, plain, truth)


def test_saved_bytes():
    x, w, _ = tensors(0, torch.bfloat16, (9, H))
    weights = [getattr(w, p).requires_grad_() for p in PARTS]
    for save, per_token in (("all", 2 * H + 4 * I), ("gate_up", 2 * H + 2 * I), ("input", 2 * H)):
        options = MLPOptions(save=save)
        kept = saved_bytes(lambda o=options: classic_ffn(x, *weights, options=o), weights)
        assert kept == 9 * per_token


@pytest.mark.parametrize(("rounding", "tile"), list(itertools.product(("hf", "wide"), (None, 2))))
def test_gradcheck(rounding, tile):
    x, w, _ = tensors(0, torch.float64, (5, 4), width=6)
    inputs = [x.requires_grad_(), *(getattr(w, p).requires_grad_() for p in PARTS)]
    options = MLPOptions(rounding=rounding, save="input", tile=tile)
    assert torch.autograd.gradcheck(lambda *t: classic_ffn(*t, options=options), inputs)


def test_what_does_not_fit_is_named():
    x, w, _ = tensors(0, torch.float32)
    with pytest.raises(UsageError, match=r"w2 has shape \(112, 48\)"):
        classic_ffn(x, w.gate, w.gate)
    with pytest.raises(UsageError, match="activation 'gpt_oss' needs a gate and an up projection"):
        classic_ffn(x, w.gate, w.down, act="gpt_oss")
