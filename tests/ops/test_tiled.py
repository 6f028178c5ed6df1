"""Tiled and wide paths: as accurate as plain torch by the one rule, and bounded in memory."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gateup.ops import gemm, tiled
from gateup.ops.gated_mlp import Weights, gated_mlp
from gateup.ops.options import MLPOptions
from tests.numerics import assert_as_good
from tests.ops.inputs import H, I, exact, gradients, plain, tensors

SHAPE = (2, 60, H)


def combinations():
    for rounding, save, tile in itertools.product(
        ("hf", "wide"), ("all", "gate_up", "input"), (None, 7, 64)
    ):
        yield MLPOptions(rounding=rounding, save=save, tile=tile)


def ours(options, dtype, act="silu", spoil=lambda weights: weights):
    def run(seed):
        x, weights, dy = tensors(seed, dtype, SHAPE)
        call = lambda x, *w: gated_mlp(x, spoil(Weights(*w)), act=act, options=options)  # noqa: E731
        return gradients(call, x, weights, dy)

    return run


def theirs(dtype, act="silu"):
    def run(seed):
        x, weights, dy = tensors(seed, dtype, SHAPE)
        return gradients(lambda x, *w: plain(x, *w, act=act), x, weights, dy)

    return run


def truth(dtype, act="silu"):
    def run(seed):
        x, weights, dy = tensors(seed, dtype, SHAPE)
        return exact(lambda x, *w: plain(x, *w, act=act), x, weights, dy)

    return run


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", list(combinations()), ids=str)
def test_every_combination_is_as_good_as_plain_torch(options, dtype):
    assert_as_good(ours(options, dtype), theirs(dtype), truth(dtype))


@pytest.mark.parametrize("rounding", ["hf", "wide"])
@pytest.mark.parametrize(
    "act", ["gelu", "gelu_tanh", "relu", "relu2", "sigmoid", "identity", "gpt_oss"]
)
def test_every_activation(act, rounding):
    options = MLPOptions(rounding=rounding, save="input", tile=32)
    kind = torch.bfloat16, act
    assert_as_good(ours(options, *kind), theirs(*kind), truth(*kind))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_wide_in_small_blocks(monkeypatch, dtype):
    monkeypatch.setattr(tiled, "WIDE_ROWS", 32)
    monkeypatch.setattr(tiled, "WIDE_ELEMENTS", 1)
    monkeypatch.setattr(tiled, "WIDE_COLUMNS", 50)
    for save, tile in itertools.product(("all", "gate_up", "input"), (None, 50)):
        options = MLPOptions(rounding="wide", save=save, tile=tile)
        assert_as_good(ours(options, dtype), theirs(dtype), truth(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_without_a_mixed_gemm(monkeypatch, dtype):
    """As on machines whose torch has no MKL inside."""
    monkeypatch.setattr(gemm, "_mkl", lambda dtype: None)
    monkeypatch.setattr(gemm, "_UPCAST_COLUMNS", 50)
    options = MLPOptions(rounding="wide", save="input", tile=50)
    assert_as_good(ours(options, dtype), theirs(dtype), truth(dtype))


MUTANTS = {
    "relu": ("relu", lambda w: w),
    "swapped": ("silu", lambda w: w._replace(gate=w.up, up=w.gate)),
    "bias dropped": ("silu", lambda w: w._replace(up_bias=0 * w.up_bias)),
    "zeros": ("silu", lambda w: w._replace(down=0 * w.down, down_bias=0 * w.down_bias)),
}


@pytest.mark.parametrize("options", [MLPOptions(), MLPOptions(rounding="wide", tile=50)], ids=str)
@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_wrong_fails_the_rule(name, options):
    act, spoil = MUTANTS[name]
    dtype = torch.bfloat16
    with pytest.raises(AssertionError):
        assert_as_good(ours(options, dtype, act, spoil), theirs(dtype), truth(dtype))


def test_wide_is_better_than_rounding_at_every_step():
    """Otherwise the mode has no reason to be: the error of y at least 15 % lower."""
    dtype = torch.bfloat16
    with pytest.raises(AssertionError, match=r"^y: Frobenius"):
        assert_as_good(
            lambda seed: {"y": theirs(dtype)(seed)["y"] * 1.0},
            lambda seed: {"y": ours(MLPOptions(rounding="wide"), dtype)(seed)["y"]},
            lambda seed: {"y": truth(dtype)(seed)["y"]},
        )


def test_the_last_short_tile_and_tiles_of_one():
    for tile in (1, 119, 120, 121):
        options = MLPOptions(save="input", tile=tile)
        assert_as_good(ours(options, torch.bfloat16), theirs(torch.bfloat16), truth(torch.bfloat16))


class Largest(TorchDispatchMode):
    """The largest tensor that anything allocates."""

    def __init__(self):
        super().__init__()
        self.elements, self.owner = 0, ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for out in result if isinstance(result, tuple | list) else [result]:
            if isinstance(out, torch.Tensor) and out.untyped_storage().data_ptr() not in known:
                size = out.untyped_storage().nbytes() // out.element_size()
                if size > self.elements:
                    self.elements, self.owner = size, str(func)
        return result


def largest(options, tokens, weights_bytes=True):
    x, weights, dy = tensors(0, torch.bfloat16, (tokens, H))
    leaf = [t.requires_grad_() for t in (x, *weights)]
    with Largest() as seen:
        y = gated_mlp(x, weights, options=options)
        torch.autograd.grad(y, leaf, dy)
    return seen


@pytest.mark.parametrize("rounding", ["hf", "wide"])
def test_no_full_intermediate_is_ever_allocated(rounding):
    """[T, H] (y and dx) is the largest, whatever T is; [T, I] would be 2.3 times that."""
    tokens = 4000
    tiled_one = largest(MLPOptions(rounding=rounding, save="input", tile=64), tokens)
    assert tiled_one.elements == tokens * H, tiled_one.owner
    untiled = largest(MLPOptions(rounding=rounding, save="input"), tokens)
    assert untiled.elements >= tokens * I


def test_the_transient_does_not_grow_with_the_tokens():
    """Everything but x, y, their gradients and the weights' sums is the same at 500 and 4000."""
    peaks = [transient(tokens) for tokens in (500, 4000)]
    assert peaks[0] == peaks[1]


def transient(tokens):
    """Elements allocated in tensors that are neither [tokens, H] nor a weight's gradient."""
    x, weights, dy = tensors(0, torch.bfloat16, (tokens, H))
    leaf = [t.requires_grad_() for t in (x, *weights)]
    sizes = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if str(func).startswith("aten.new_empty"):
                sizes.add(tuple(result.shape))
            return result

    with Watch():
        y = gated_mlp(x, weights, options=MLPOptions(save="input", tile=64))
        torch.autograd.grad(y, leaf, dy)
    return {size for size in sizes if size[0] != tokens}


def test_sums_over_tiles_are_kept_in_float32():
    """400 tiles of the same token: a sum in bf16 would stop growing at 256 times the summand."""
    x = torch.ones(400, H).bfloat16()
    _, weights, _ = tensors(0, torch.bfloat16, bias=False)
    weights = Weights(*(w.abs() for w in weights[:3]))
    down = weights.down.requires_grad_()
    dy = torch.ones(400, H).bfloat16()
    gated_mlp(x, weights, options=MLPOptions(tile=1)).backward(dy)
    one = down.grad.clone()
    down.grad = None
    gated_mlp(x[:1], weights, options=MLPOptions(tile=1)).backward(dy[:1])
    ratio = one.float() / down.grad.float()
    # 400 times, up to the rounding of the sum and of the summand.
    assert bool((ratio - 400).abs().max() <= 400 * 2**-8)


def test_a_budget_picks_the_tile():
    options = MLPOptions(save="input", budget=64 * MLPOptions().transient(I, 2))
    assert options.tile_size(I, 2) == 64
    tokens = 4000
    assert largest(options, tokens).elements == tokens * H
