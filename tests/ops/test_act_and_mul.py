"""act(gate) ⊙ up: layouts, accuracy, bits of the stepwise form, and what autograd keeps."""

from __future__ import annotations

import itertools

import pytest
import torch

from gateup.errors import UsageError
from gateup.model.layout import GateUpLayout
from gateup.ops import dispatch, reference
from gateup.ops.act_and_mul import act_and_mul, act_and_mul_split
from gateup.ops.activations import ACTIVATIONS
from tests.numerics import assert_as_good
from tests.ops.inputs import saved_bytes

LAYOUTS = [
    GateUpLayout(form, order)
    for form, order in itertools.product(("concat", "interleaved"), ("gate_up", "up_gate"))
]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def draw(seed, dtype, shape=(3, 31, 40)):
    generator = torch.Generator().manual_seed(seed)
    # 4: gpt-oss's clamp at 7 is met.
    return tuple((torch.randn(shape, generator=generator) * 4).to(dtype) for _ in range(3))


def fuse(gate, up, layout):
    first, second = (gate, up) if layout.order == "gate_up" else (up, gate)
    if layout.form == "concat":
        return torch.cat((first, second), -1)
    return torch.stack((first, second), -1).flatten(-2)


def run(function, dtype, layout=None):
    def at(seed):
        gate, up, dy = draw(seed, dtype)
        inputs = (gate, up) if layout is None else (fuse(gate, up, layout),)
        inputs = [t.requires_grad_() for t in inputs]
        h = function(*inputs)
        h.backward(dy)
        return [h.detach(), *(t.grad for t in inputs)]

    return at


def expected(act, dtype, layout=None, double=False):
    def at(seed):
        gate, up, dy = draw(seed, dtype)
        if double:
            gate, up, dy = gate.double(), up.double(), dy.double()
        gate.requires_grad_()
        up.requires_grad_()
        h = reference.act_and_mul(gate, up, act)
        h.backward(dy)
        grads = (gate.grad, up.grad) if layout is None else (fuse(gate.grad, up.grad, layout),)
        return [h.detach(), *grads]

    return at


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("backend", ["torch", None])
def test_split(act, dtype, backend):
    ours = run(lambda g, u: act_and_mul_split(g, u, act), dtype)
    with dispatch.using(backend):
        assert_as_good(ours, expected(act, dtype), expected(act, dtype, double=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("backend", ["torch", None])
def test_every_layout(layout, dtype, backend):
    ours = run(lambda gu: act_and_mul(gu, layout=layout), dtype, layout)
    with dispatch.using(backend):
        assert_as_good(
            ours, expected("silu", dtype, layout), expected("silu", dtype, layout, double=True)
        )


def test_another_layout_is_another_result():
    for right, wrong in itertools.permutations(LAYOUTS, 2):
        ours = run(lambda gu, wrong=wrong: act_and_mul(gu, layout=wrong), torch.bfloat16, right)
        with pytest.raises(AssertionError):
            assert_as_good(
                ours,
                expected("silu", torch.bfloat16, right),
                expected("silu", torch.bfloat16, right, double=True),
            )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_stepwise_rounding_has_eager_bits(act, dtype):
    ours = run(lambda g, u: act_and_mul_split(g, u, act, rounding="hf"), dtype)(0)
    for a, b in zip(ours, expected(act, dtype)(0), strict=True):
        assert torch.equal(a, b)


def test_keeps_gate_and_up_and_nothing_else():
    gate, up, _ = draw(0, torch.bfloat16)
    gate.requires_grad_()
    for rounding in ("hf", "wide"):
        kept = saved_bytes(lambda r=rounding: act_and_mul_split(gate, up, rounding=r), ())
        assert kept == 2 * 2 * gate.numel()


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_gradcheck(act):
    gate, up, _ = draw(0, torch.float64, (3, 5))
    gate.requires_grad_()
    up.requires_grad_()
    assert torch.autograd.gradcheck(lambda g, u: act_and_mul_split(g, u, act), (gate, up))
    fused = fuse(gate, up, LAYOUTS[2]).detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: act_and_mul(x, act=act, layout=LAYOUTS[2]), fused)


@pytest.mark.parametrize("shape", [(8,), (0, 8), (2, 3, 8), (2, 3, 4, 8)])
def test_shapes(shape):
    x = torch.randn(shape, requires_grad=True)
    h = act_and_mul(x)
    h.sum().backward()
    assert h.shape == (*shape[:-1], 4)
    assert x.grad.shape == shape


def test_non_contiguous():
    x = torch.randn(6, 5, 16)
    want = reference.act_and_mul(x[..., :8], x[..., 8:])
    for view in (x.transpose(0, 1), x[:, ::2], x.flip(-1)):
        back = view.contiguous()
        assert torch.equal(act_and_mul(view), act_and_mul(back))
    torch.testing.assert_close(act_and_mul(x.transpose(0, 1)), want.transpose(0, 1))
    gate, up = x.chunk(2, -1)
    torch.testing.assert_close(act_and_mul_split(gate, up), want)
    h = act_and_mul_split(gate.requires_grad_(), up)
    # A gradient of stride 0.
    h.sum().backward()
    torch.testing.assert_close(
        gate.grad,
        torch.autograd.functional.vjp(lambda g: reference.act_and_mul(g, up).sum(), gate)[1],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(dtype):
    gate, up, dy = (t.requires_grad_() for t in draw(0, dtype, (3, 8)))
    fused = torch.cat((gate, up), -1).detach().requires_grad_()
    ops = torch.ops.gateup
    for eager in (False, True):
        torch.library.opcheck(ops.act_and_mul_split.default, (gate, up, "silu", eager))
        torch.library.opcheck(
            ops.act_and_mul_split_backward.default,
            (dy.detach(), gate.detach(), up.detach(), "silu", eager),
        )
    for word in ("concat", "interleaved_up_first"):
        torch.library.opcheck(ops.act_and_mul.default, (fused, "gelu", word))
        torch.library.opcheck(
            ops.act_and_mul_backward.default, (dy.detach(), fused.detach(), "gelu", word)
        )


def test_differentiating_twice_is_refused_by_name():
    x = torch.randn(3, 8, requires_grad=True)
    for h, name in (
        (act_and_mul(x), "act_and_mul"),
        (act_and_mul_split(x, x.detach()), "act_and_mul_split"),
    ):
        (grad,) = torch.autograd.grad(h.sum(), x, create_graph=True)
        with pytest.raises(UsageError, match=f"gateup.ops.{name} was differentiated twice"):
            grad.sum().backward()


FAULTS = {
    "odd": (lambda: act_and_mul(torch.ones(2, 7)), "gate_up has the odd width 7"),
    "number": (lambda: act_and_mul(torch.ones(())), "gate_up is a single number"),
    "split layout": (
        lambda: act_and_mul(torch.ones(2, 8), layout=GateUpLayout()),
        "does not describe one fused gate and up",
    ),
    "stacked": (
        lambda: act_and_mul(torch.ones(2, 8), layout=GateUpLayout("concat", stacked=True)),
        "does not describe one fused gate and up",
    ),
    "activation": (lambda: act_and_mul(torch.ones(2, 8), act="mish"), "activation 'mish'"),
    "uint8": (lambda: act_and_mul(torch.ones(2, 8).byte()), "gate_up is uint8, shape (2, 8)"),
    "shapes": (
        lambda: act_and_mul_split(torch.ones(2, 8), torch.ones(2, 7)),
        "gate has shape (2, 8), up (2, 7)",
    ),
    "dtypes": (
        lambda: act_and_mul_split(torch.ones(2, 8), torch.ones(2, 8).half()),
        "up is float16, gate is float32",
    ),
    "devices": (
        lambda: act_and_mul_split(torch.ones(2, 8), torch.ones(2, 8, device="meta")),
        "up is on meta, gate on cpu",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_does_not_fit_is_named(name):
    call, text = FAULTS[name]
    with pytest.raises(UsageError) as caught:
        call()
    assert text in str(caught.value)


def test_an_unknown_backend_is_refused_by_name():
    with dispatch.using("cublas"), pytest.raises(UsageError, match="backend 'cublas' is not there"):
        act_and_mul(torch.ones(2, 8))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_on_cuda(dtype):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    gate, up, _ = (t.cuda() for t in draw(0, dtype))
    want = reference.act_and_mul(gate.double(), up.double())
    torch.testing.assert_close(act_and_mul_split(gate, up), want.to(dtype))
