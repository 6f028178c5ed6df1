"""torch.compile: one graph, no recompilation over T; and what opcheck asks of a custom op."""

from __future__ import annotations

import itertools
import shutil

import pytest
import torch

from gateup.model.layout import GateUpLayout
from gateup.ops.classic import classic_ffn
from gateup.ops.gated_mlp import Weights, gated_mlp, gated_mlp_fused
from gateup.ops.options import MLPOptions
from tests.ops.inputs import H, I, saved_bytes, tensors

OPTIONS = [
    MLPOptions(),
    MLPOptions(save="gate_up"),
    MLPOptions(save="input", tile=5),
    MLPOptions(rounding="wide", save="gate_up", budget=40 * I * 16),
]
BACKENDS = [
    "aot_eager",
    pytest.param(
        "inductor",
        marks=pytest.mark.skipif(
            not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="no C++ compiler"
        ),
    ),
]


def results(function, x, weights, dy):
    leaf = [t.detach().clone().requires_grad_() for t in (x, *weights)]
    y = function(*leaf)
    return [y.detach(), *torch.autograd.grad(y, leaf, dy)]


def assert_same_over_lengths(function, weights_of, dtype, backend, lengths=(4, 7, 9, 33)):
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for tokens in lengths:
            x, weights, dy = tensors(tokens, dtype, (2, tokens, H))
            weights = weights_of(weights)
            leaf = [t.detach().clone().requires_grad_() for t in (x, *weights)]
            torch._dynamo.mark_dynamic(leaf[0], 1)
            y = compiled(*leaf)
            got = [y.detach(), *torch.autograd.grad(y, leaf, dy)]
            for a, b in zip(got, results(function, x, weights, dy), strict=True):
                assert torch.equal(a, b)


# inductor itself meets a deprecated decorator of torch's when it is first imported.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_one_graph_for_every_length(options, dtype, backend):
    if backend == "inductor" and dtype == torch.float32:
        pytest.skip("the op is opaque to inductor; one dtype shows it")
    assert_same_over_lengths(
        lambda x, *w: gated_mlp(x, Weights(*w), options=options), lambda w: w, dtype, backend
    )


def test_fused_and_classic():
    assert_same_over_lengths(
        lambda x, gu, down: gated_mlp_fused(x, gu, down, layout=GateUpLayout("interleaved")),
        lambda w: (torch.cat((w.gate, w.up)), w.down),
        torch.bfloat16,
        "aot_eager",
    )
    assert_same_over_lengths(classic_ffn, lambda w: (w.gate, w.down), torch.bfloat16, "aot_eager")


def test_without_gradients():
    torch._dynamo.reset()
    x, weights, _ = tensors(0, torch.bfloat16)
    compiled = torch.compile(lambda x: gated_mlp(x, weights), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(x), gated_mlp(x, weights))


def test_under_autocast():
    torch._dynamo.reset()
    x, weights, dy = tensors(0, torch.float32)

    def function(x, *w):
        with torch.autocast("cpu", torch.bfloat16):
            return gated_mlp(x, Weights(*w))

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    dy = dy.bfloat16()
    got, want = results(compiled, x, weights, dy), results(function, x, weights, dy)
    assert got[0].dtype == torch.bfloat16
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        # Eager adds gate's and up's part of x's gradient outside the op; the sum is the same.
        assert torch.equal(a, b)


@pytest.mark.parametrize(("save", "per_token"), [("gate_up", 2 * H + 4 * I), ("input", 2 * H)])
def test_compiled_code_keeps_what_eager_keeps(save, per_token):
    torch._dynamo.reset()
    options = MLPOptions(save=save)
    x, weights, _ = tensors(0, torch.bfloat16, (16, H))
    leaf = Weights(*(w.requires_grad_() for w in weights))
    compiled = torch.compile(
        lambda x: gated_mlp(x, leaf, options=options), fullgraph=True, backend="aot_eager"
    )
    x.requires_grad_()
    compiled(x)
    assert saved_bytes(lambda: compiled(x), leaf) == 16 * per_token


CALLS = [
    (False, 0, [True, True, True]),
    (False, 0, [False, False, False]),
    (False, 2, [True, True, False]),
    (True, 0, [True, False, False]),
    (True, 2, [True, True, True]),
]


@pytest.mark.parametrize(("wide", "tile", "keep"), CALLS)
def test_opcheck_forward(wide, tile, keep):
    x, weights, _ = tensors(0, torch.bfloat16, (3, 8), width=10)
    trains = any(keep)
    args = [t.requires_grad_(trains) for t in (x, *weights)]
    for x_dtype, cast in ((torch.bfloat16, None), (torch.float32, torch.bfloat16)):
        args[0] = x.detach().to(x_dtype).requires_grad_(trains)
        torch.library.opcheck(
            torch.ops.gateup.mlp.default, (*args, "split", "silu", wide, tile, cast, keep)
        )


@pytest.mark.parametrize(("wide", "tile"), list(itertools.product((False, True), (0, 2))))
def test_opcheck_backward(wide, tile):
    x, w, dy = tensors(0, torch.bfloat16, (3, 8), width=10)
    needs = [True, False, True, True, True, False, True]
    inputs = (dy, x, w.gate, w.up, w.down, w.gate_bias, w.up_bias)
    torch.library.opcheck(
        torch.ops.gateup.mlp_backward.default,
        (*inputs, None, None, None, "split", "silu", wide, tile, None, needs, torch.bfloat16),
    )


@pytest.mark.parametrize("form", ["plain", "concat", "interleaved_up_first"])
def test_opcheck_of_other_forms(form):
    x, w, _ = tensors(0, torch.float32, (3, 8), width=10)
    first = w.gate if form == "plain" else torch.cat((w.gate, w.up))
    bias = w.gate_bias if form == "plain" else torch.cat((w.gate_bias, w.up_bias))
    args = [
        None if t is None else t.detach().requires_grad_()
        for t in (x, first, None, w.down, bias, None, w.down_bias)
    ]
    torch.library.opcheck(
        torch.ops.gateup.mlp.default, (*args, form, "gelu", False, 2, None, [True, True, True])
    )
