"""torch.func's transforms and forward-mode differentiation against float64."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacrev, jvp, vjp, vmap

from gateup.errors import UsageError
from gateup.model.layout import GateUpLayout
from gateup.ops import reference
from gateup.ops.act_and_mul import act_and_mul, act_and_mul_split
from gateup.ops.classic import classic_ffn
from gateup.ops.gated_mlp import Weights, gated_mlp, gated_mlp_fused
from gateup.ops.modular import gated_mlp_modules
from gateup.ops.moe import ExpertWeights, moe
from gateup.ops.options import MLPOptions
from tests.numerics import errors
from tests.ops.inputs import H, plain, tensors

# torch's own rules of forward mode are scripted when first used.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

OPTIONS = (MLPOptions(), MLPOptions(rounding="wide"), MLPOptions(save="input", tile=3))


def ours(options: MLPOptions, act: str = "silu"):
    return lambda x, *w: gated_mlp(x, Weights(*w), act=act, options=options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_tangents(options, dtype):
    x, weights, v = tensors(0, dtype)
    truth = jvp(lambda t: plain(t, *(w.double() for w in weights)), (x.double(),), (v.double(),))
    theirs = jvp(lambda t: plain(t, *weights), (x,), (v,))
    got = jvp(lambda t: ours(options)(t, *weights), (x,), (v,))
    with forward_ad.dual_level():
        dual = ours(options)(forward_ad.make_dual(x, v), *weights)
        open_level = tuple(forward_ad.unpack_dual(dual))
    for results in (got, open_level):
        for a, b, t in zip(results, theirs, truth, strict=True):
            assert a.dtype == dtype
            assert errors([a], [t])[0] <= 1.05 * errors([b], [t])[0]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("act", ["silu", "gpt_oss", "relu2"])
def test_every_transform(options, act):
    x, weights, _ = tensors(0, torch.float64, (3, 4), width=5)
    mine, truth = ours(options, act), lambda t, *w: plain(t, *w, act=act)
    for function in (
        lambda f: grad(lambda t: f(t, *weights).square().sum())(x),
        lambda f: grad(lambda g: f(x, g, *weights[1:]).square().sum())(weights.gate),
        lambda f: vmap(grad(lambda g, t: f(t, g, *weights[1:]).sum()), (None, 0))(weights.gate, x),
        lambda f: jacrev(lambda t: f(t, *weights))(x),
        lambda f: hessian(lambda t: f(t, *weights).sum())(x),
    ):
        torch.testing.assert_close(function(mine), function(truth), rtol=1e-12, atol=1e-12)


def test_hf_rounding_keeps_its_bits_under_vjp():
    x, weights, _ = tensors(0, torch.bfloat16)
    y, _ = vjp(lambda t: ours(MLPOptions())(t, *weights), x)
    assert torch.equal(y, plain(x, *weights))


def test_other_forms():
    x, w, v = tensors(0, torch.float64, bias=False)
    fused = torch.stack((w.up, w.gate), 1).flatten(0, 1)
    layout = GateUpLayout("interleaved", "up_gate")
    for function, truth in (
        (lambda t: gated_mlp_fused(t, fused, w.down, layout=layout), lambda t: plain(t, *w[:3])),
        (
            lambda t: classic_ffn(t, w.gate, w.down),
            lambda t: reference.classic_ffn(t, w.gate, w.down),
        ),
    ):
        torch.testing.assert_close(jvp(function, (x,), (v,)), jvp(truth, (x,), (v,)))


def test_the_elementwise_op():
    fused, v = torch.randn(2, 5, 12, dtype=torch.float64)
    truth = jvp(lambda t: reference.act_and_mul(*t.chunk(2, -1)), (fused,), (v,))
    split = jvp(lambda t: act_and_mul_split(*t.chunk(2, -1)), (fused,), (v,))
    torch.testing.assert_close(jvp(act_and_mul, (fused,), (v,)), truth)
    torch.testing.assert_close(split, truth)


@pytest.mark.parametrize("save", ["all", "gate_up", "input"])
def test_projections_as_modules(save):
    torch.manual_seed(0)
    sizes = ((H, 20), (H, 20), (20, H))
    layers = [torch.nn.Linear(*size, dtype=torch.float64) for size in sizes]
    x = torch.randn(4, H, dtype=torch.float64)
    tile = None if save == "gate_up" else 3
    options = MLPOptions(save=save, tile=tile)
    got = grad(lambda t: gated_mlp_modules(t, *layers, options=options).sum())(x)
    weights = (*(layer.weight for layer in layers), *(layer.bias for layer in layers))
    torch.testing.assert_close(got, grad(lambda t: plain(t, *weights).sum())(x))


@pytest.mark.parametrize("transform", [lambda f, x: jvp(f, (x,), (x,)), lambda f, x: grad(f)(x)])
def test_experts_refuse_by_name(transform):
    x, weights = torch.randn(3, 8), torch.ones(3, 1)
    bank = ExpertWeights(torch.randn(2, 12, 8), torch.randn(2, 8, 6))
    index = torch.zeros(3, 1, dtype=torch.int64)
    with pytest.raises(UsageError, match=r"differentiation went through gateup\.ops\.moe"):
        transform(lambda t: moe(t, index, weights, bank).sum(), x)
