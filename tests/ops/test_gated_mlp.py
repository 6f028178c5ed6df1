"""The gated MLP against transformers' own classes, bit by bit, and its behaviour under autograd."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from transformers import GemmaConfig, LlamaConfig, Phi3Config
from transformers.models.gemma.modeling_gemma import GemmaMLP
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.phi3.modeling_phi3 import Phi3MLP

from gateup.errors import UsageError
from gateup.model.layout import GateUpLayout
from gateup.ops import reference
from gateup.ops.gated_mlp import Weights, gated_mlp, gated_mlp_fused
from gateup.ops.options import MLPOptions
from tests.numerics import assert_as_good
from tests.ops.inputs import NAMES, H, I, gradients, plain, saved_bytes, tensors

SAVES = ("all", "gate_up", "input")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((H,), (1, H), (7, H), (64, H), (129, H), (3, 43, H), (2, 3, 5, H))


def options_of(rounding=("hf", "wide"), save=SAVES, tile=(None, 10, 1000)):
    return [
        MLPOptions(rounding=r, save=s, tile=t)
        for r, s, t in itertools.product(rounding, save, tile)
    ]


def stock_gradients(module, x, dy):
    x = x.detach().clone().requires_grad_()
    y = module(x)
    y.backward(dy)
    return {"y": y, "x": x.grad} | {n: p.grad for n, p in module.named_parameters()}


def assert_bits(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b), f"{(a.double() - b.double()).abs().max():.2e}"


def llama(dtype, bias, cls=LlamaMLP, config=LlamaConfig, **kwargs):
    torch.manual_seed(0)
    own = {"mlp_bias": bias} if config is LlamaConfig else {}
    return cls(
        config(hidden_size=H, intermediate_size=I, num_attention_heads=2, **own, **kwargs)
    ).to(dtype)


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
def test_bits_of_llama(bias, dtype, save):
    module = llama(dtype, bias)
    for shape in SHAPES:
        x, _, dy = tensors(1, dtype, shape)
        module.zero_grad()
        theirs = stock_gradients(module, x, dy)
        weights = [p for m in module.children() if isinstance(m, nn.Linear) for p in (m.weight,)]
        biases = [m.bias for m in module.children() if isinstance(m, nn.Linear)]
        ours = gradients(
            lambda x, *w: gated_mlp(x, Weights(*w), options=MLPOptions(save=save)),
            x,
            [*weights, *biases],
            dy,
        )
        order = ["y", "x", *(f"{n}_proj.weight" for n in ("gate", "up", "down"))]
        order += [f"{n}_proj.bias" for n in ("gate", "up", "down")] if bias else []
        assert_bits(ours.values(), [theirs[n] for n in order])


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_gemma(dtype):
    module = llama(dtype, False, GemmaMLP, GemmaConfig, hidden_act="gelu_pytorch_tanh")
    x, _, dy = tensors(2, dtype, (2, 33, H))
    theirs = stock_gradients(module, x, dy)
    ours = gradients(
        lambda x, *w: gated_mlp(x, Weights(*w), act="gelu_tanh"),
        x,
        list(module.parameters()),
        dy,
        NAMES[:3],
    )
    assert_bits(ours.values(), theirs.values())


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_phi3_whose_gate_and_up_are_one_tensor(dtype, save):
    torch.manual_seed(0)
    module = Phi3MLP(
        Phi3Config(hidden_size=H, intermediate_size=I, num_attention_heads=2, pad_token_id=0)
    ).to(dtype)
    for shape in SHAPES:
        x, _, dy = tensors(3, dtype, shape)
        module.zero_grad()
        theirs = stock_gradients(module, x, dy)
        ours = gradients(
            lambda x, gu, down: gated_mlp_fused(
                x, gu, down, layout=GateUpLayout("concat"), options=MLPOptions(save=save)
            ),
            x,
            list(module.parameters()),
            dy,
            ("gate_up", "down"),
        )
        assert_bits(ours.values(), theirs.values())


def non_contiguous(dtype):
    x = tensors(4, dtype, (24, 2 * H))[0]
    yield "every second column", x[:, ::2]
    yield "columns first", torch.randn(H, 24).to(dtype).t()
    yield "batch and sequence swapped", torch.randn(5, 24, H).to(dtype).transpose(0, 1)
    yield "one row for all", torch.randn(H).to(dtype).expand(24, H)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_non_contiguous_inputs(dtype):
    _, weights, _ = tensors(4, dtype)
    for name, x in non_contiguous(dtype):
        dy = torch.randn(*x.shape).to(dtype).transpose(0, -1).contiguous().transpose(0, -1)
        want = gradients_of_view(lambda x, w: plain(x, *w), x, weights, dy)
        assert_bits(gradients_of_view(gated_mlp, x, weights, dy), want)
        for options in options_of():
            got = gradients_of_view(
                lambda x, w, o=options: gated_mlp(x, w, options=o), x, weights, dy
            )
            for a, b in zip(got, want, strict=True):
                # Strides are the question here, not accuracy: a wrong row would be off by 1.
                error = (a.double() - b.double()).norm() / b.double().norm()
                assert error < 0.02, f"{name}, {options}: {error}"


def gradients_of_view(function, x, weights, dy):
    """x's strides are kept: it is detached, not cloned."""
    x = x.detach().requires_grad_()
    w = Weights(*(p.clone().requires_grad_() for p in weights))
    y = function(x, w)
    return [y, *torch.autograd.grad(y, (x, *w), dy)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("save", "hidden", "inner"), [("all", 2, 6), ("gate_up", 2, 4), ("input", 2, 0)]
)
def test_saved_bytes_per_token(save, hidden, inner, bias):
    for tile, rounding in itertools.product((None, 10), ("hf", "wide")):
        for tokens in (8, 50):
            x, weights, _ = tensors(0, torch.bfloat16, (tokens, H), bias)
            w = Weights(*(None if p is None else p.requires_grad_() for p in weights))
            x.requires_grad_()
            options = MLPOptions(rounding=rounding, save=save, tile=tile)
            kept = saved_bytes(lambda x=x, w=w, o=options: gated_mlp(x, w, options=o), w)
            assert kept == tokens * (hidden * H + inner * I)


def test_stock_keeps_more():
    x, weights, _ = tensors(0, torch.bfloat16, (8, H), False)
    w = [p for p in weights if p is not None]
    for p in w:
        p.requires_grad_()
    assert saved_bytes(lambda: reference.gated_mlp(x, *w), w) == 8 * (2 * H + 8 * I)


@pytest.mark.parametrize(
    ("trained", "save", "per_token"),
    [
        # Only x asks for a gradient: gate and up suffice, x itself is not needed.
        ((), "all", 4 * I),
        ((), "gate_up", 4 * I),
        ((), "input", 2 * H),
        (("down",), "all", 4 * I + 2 * I),
        (("gate",), "all", 4 * I + 2 * H),
        (("down_bias",), "input", 2 * H),
    ],
)
def test_frozen_weights_keep_and_get_nothing(trained, save, per_token):
    x, weights, dy = tensors(0, torch.bfloat16, (8, H))
    x.requires_grad_()
    for name in trained:
        getattr(weights, name).requires_grad_()
    run = lambda: gated_mlp(x, weights, options=MLPOptions(save=save))  # noqa: E731
    assert saved_bytes(run, weights) == 8 * per_token
    run().backward(dy)
    full = gradients(lambda x, *w: plain(x, *w), x, weights, dy)
    assert torch.equal(x.grad, full["d_x"])
    for name, weight in zip(NAMES, weights, strict=True):
        if name in trained:
            assert torch.equal(weight.grad, full[f"d_{name}"])
        else:
            assert weight.grad is None


def test_frozen_x_and_nothing_trained_keeps_nothing():
    x, weights, _ = tensors(0, torch.float32)
    assert not gated_mlp(x, weights).requires_grad
    with torch.no_grad():
        assert not gated_mlp(x.requires_grad_(), weights).requires_grad


@pytest.mark.parametrize("options", options_of(tile=(None, 10)), ids=str)
def test_every_subset_of_gradients(options):
    x, weights, dy = tensors(5, torch.float32)
    full = gradients(lambda x, *w: gated_mlp(x, Weights(*w), options=options), x, weights, dy)
    names = ("x", *NAMES)
    for wanted in [(n,) for n in names] + [("gate", "down_bias"), ("x", "up"), ("down", "up_bias")]:
        leaf = {n: t.clone() for n, t in zip(names, (x, *weights), strict=True)}
        for name in wanted:
            leaf[name].requires_grad_()
        y = gated_mlp(leaf["x"], Weights(*(leaf[n] for n in NAMES)), options=options)
        for name, grad in zip(
            wanted, torch.autograd.grad(y, [leaf[n] for n in wanted], dy), strict=True
        ):
            assert torch.equal(grad, full[f"d_{name}"]), name


@pytest.mark.parametrize("options", options_of(tile=(None, 10)), ids=str)
def test_a_second_backward_gives_the_same(options):
    x, weights, dy = tensors(6, torch.bfloat16)
    leaf = [x.requires_grad_(), *(w.requires_grad_() for w in weights)]
    y = gated_mlp(x, weights, options=options)
    first = torch.autograd.grad(y, leaf, dy, retain_graph=True)
    assert_bits(torch.autograd.grad(y, leaf, dy), first)


@pytest.mark.parametrize("options", options_of(tile=(None, 10)), ids=str)
def test_differentiating_twice_is_refused_by_name(options):
    x, weights, _ = tensors(7, torch.float64)
    x.requires_grad_()
    y = gated_mlp(x, weights, options=options)
    (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(UsageError) as caught:
        grad.sum().backward()
    assert "gateup.ops.gated_mlp was differentiated twice" in str(caught.value)
    assert "gateup.ops.reference" in str(caught.value)


@pytest.mark.parametrize("options", options_of(tile=(None, 2)), ids=str)
@pytest.mark.parametrize(
    "act", ["silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid", "identity", "gpt_oss"]
)
def test_gradcheck(act, options):
    x, weights, _ = tensors(8, torch.float64, (5, 4), width=6)
    inputs = [t.requires_grad_() for t in (x * 3, *weights)]
    assert torch.autograd.gradcheck(
        lambda x, *w: gated_mlp(x, Weights(*w), act=act, options=options), inputs
    )


@pytest.mark.parametrize("options", options_of(tile=(None, 10)), ids=str)
def test_gradients_accumulate(options):
    x, weights, dy = tensors(9, torch.float32)
    for w in weights:
        w.requires_grad_()
    one = gradients(lambda x, *w: gated_mlp(x, Weights(*w), options=options), x, weights, dy)
    for _ in range(2):
        gated_mlp(x, weights, options=options).backward(dy)
    for name, w in zip(NAMES, weights, strict=True):
        assert torch.equal(w.grad, 2 * one[f"d_{name}"])


@pytest.mark.parametrize("options", options_of(tile=(None, 10)), ids=str)
@pytest.mark.parametrize("shape", [(0, H), (2, 0, H)])
def test_no_tokens(shape, options):
    x, weights, dy = tensors(10, torch.bfloat16, shape)
    got = gradients(lambda x, *w: gated_mlp(x, Weights(*w), options=options), x, weights, dy)
    assert got["y"].shape == got["d_x"].shape == shape
    for name, w in zip(NAMES, weights, strict=True):
        assert torch.equal(got[f"d_{name}"], torch.zeros_like(w))


def test_meta_tensors_give_shapes():
    x, weights, _ = tensors(0, torch.bfloat16, (2, 3, H))
    y = gated_mlp(x.to("meta"), Weights(*(w.to("meta") for w in weights)))
    assert (y.shape, y.dtype, y.device.type) == ((2, 3, H), torch.bfloat16, "meta")


FAULTS = {
    "up [112, 47]": (
        lambda x, w: (x, w._replace(up=w.up[:, 1:])),
        "up has shape (112, 47)",
        "[I, H] = (112, 48)",
    ),
    "down transposed": (
        lambda x, w: (x, w._replace(down=w.down.t())),
        "down has shape (112, 48)",
        "(112, 112)",
    ),
    "gate 1-D": (lambda x, w: (x, w._replace(gate=w.gate[0])), "gate has shape (48,)", "[I, H]"),
    "bias": (
        lambda x, w: (x, w._replace(down_bias=w.up_bias)),
        "down_bias has shape (112,)",
        "[H] = (48,)",
    ),
    "x": (
        lambda x, w: (x[:, :40], w),
        "x has shape (37, 40), its last axis is 40",
        "48, as gate takes",
    ),
    "x 0-D": (lambda x, w: (x[0, 0], w), "x is a single number", "[..., H]"),
    "dtype": (lambda x, w: (x.half(), w), "gate is float32, x is float16", "one dtype"),
    "one dtype": (
        lambda x, w: (x, w._replace(up=w.up.bfloat16())),
        "up is bfloat16, x is float32",
        "one dtype",
    ),
    "device": (
        lambda x, w: (x, w._replace(down=w.down.to("meta"))),
        "down is on meta, x on cpu",
        "one device",
    ),
    "uint8": (
        lambda x, w: (x, w._replace(gate=w.gate.to(torch.uint8))),
        "gate is uint8, shape (112, 48)",
        "bfloat16",
    ),
    "int x": (lambda x, w: (x.int(), w), "x is int32, shape (37, 48)", "float32"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_does_not_fit_is_named_with_its_numbers(name):
    x, weights, _ = tensors(0, torch.float32)
    spoil, what, expected = FAULTS[name]
    x, weights = spoil(x, weights)
    with pytest.raises(UsageError) as caught:
        gated_mlp(x, weights)
    assert what in str(caught.value)
    assert expected in str(caught.value)


def test_unknown_activation():
    x, weights, _ = tensors(0, torch.float32)
    with pytest.raises(UsageError, match="activation 'swiglu' is not known"):
        gated_mlp(x, weights, act="swiglu")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_on_cuda(dtype):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")

    def on(function, device, double=False):
        def run(seed):
            x, weights, dy = tensors(seed, dtype, (2, 60, H))
            inputs = [t.double() if double else t for t in (x, *weights, dy)]
            x, *weights, dy = (t.to(device) for t in inputs)
            return {n: t.cpu() for n, t in gradients(function, x, weights, dy).items()}

        return run

    stock = on(lambda x, *w: plain(x, *w), "cuda")
    exact = on(lambda x, *w: plain(x, *w), "cpu", double=True)
    for options in options_of(tile=(None, 50)):
        ours = on(lambda x, *w, o=options: gated_mlp(x, Weights(*w), options=o), "cuda")
        assert_as_good(ours, stock, exact)
    assert_bits(on(lambda x, *w: gated_mlp(x, Weights(*w)), "cuda")(0).values(), stock(0).values())
