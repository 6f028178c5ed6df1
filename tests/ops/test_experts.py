"""What the expert op keeps and allocates, its kernels against each other, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gateup.errors import UsageError
from gateup.model.layout import GateUpLayout
from gateup.ops import experts_grouped, experts_loop
from gateup.ops.experts import Bank, How, Needs
from gateup.ops.moe import ExpertWeights, moe, reference
from gateup.ops.options import MLPOptions
from tests.ops.moe_cases import LAYOUTS, SAVES, WIDTH, E, H, K, T, inputs, run


@pytest.fixture(autouse=True)
def _one_thread():
    was = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(was)


# ---- what is kept and what is allocated ----------------------------------------------------------


@pytest.mark.parametrize("learn_routing", [True, False])
@pytest.mark.parametrize("tile", [None, 5])
@pytest.mark.parametrize("save", SAVES)
def test_saved_bytes(save, tile, learn_routing):
    tensors, index, _ = inputs(0, torch.bfloat16)
    leaves = [t.requires_grad_(i != 1 or learn_routing) for i, t in enumerate(tensors)]
    parameters = {t.data_ptr() for t in leaves[2:]}
    seen = {}

    def pack(t):
        if t.data_ptr() not in parameters and t.numel():
            seen[t.data_ptr()] = t.numel() * t.element_size()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = moe(
            leaves[0],
            index,
            leaves[1],
            ExpertWeights(*leaves[2:]),
            options=MLPOptions(save=save, tile=tile),
        )
    per_token = {
        "input": 2 * H,
        "gate_up": 2 * H + K * 4 * WIDTH,
        "all": 2 * H + K * 6 * WIDTH + (K * 2 * H if learn_routing else 0),
    }[save]
    routing = K * (8 + 2)  # expert numbers and weights
    assert sum(seen.values()) == T * (per_token + routing)
    assert y.requires_grad


def test_nothing_is_kept_without_a_gradient():
    tensors, index, _ = inputs(0, torch.bfloat16)
    outputs = torch.ops.gateup.experts(
        tensors[0],
        index,
        *tensors[1:],
        None,
        None,
        "silu",
        "concat:out_in",
        "slots",
        0,
        0,
    )
    assert [o.numel() for o in outputs[1:]] == [0, 0, 0]


class Largest(TorchDispatchMode):
    """The largest tensor that any operation returns, in elements, views left out."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else (out,):
            if isinstance(t, torch.Tensor) and t.dtype.is_floating_point and t._base is None:
                fresh = not any(
                    isinstance(a, torch.Tensor)
                    and a.untyped_storage().data_ptr() == t.untyped_storage().data_ptr()
                    for a in args
                )
                self.elements = max(self.elements, t.numel() if fresh else 0)
        return out


@pytest.mark.parametrize("mode", ["slots", "wide", "experts"])
def test_a_tile_bounds_the_transient(mode):
    tokens, tile = 200, 8
    tensors, index, grad = inputs(0, torch.bfloat16, tokens=tokens)
    how = How("silu", "concat:out_in", mode, 0, tile)
    bank, needs = Bank(*tensors[2:], None, None), (True, True, False, False, False, False)
    with Largest() as seen:
        _, kept = experts_loop.forward(tensors[0], index, tensors[1], bank, how)
    assert seen.elements == max(tokens * H, tile * 2 * WIDTH)  # y's sum, or a tile's gate and up
    with Largest() as seen:
        experts_loop.backward(grad, tensors[0], index, tensors[1], bank, kept, how, Needs(*needs))
    assert seen.elements == max(tokens * H, tile * 2 * WIDTH)


# ---- edges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("combine", ["slots", "experts"])
@pytest.mark.parametrize("tile", [None, 5])
@pytest.mark.parametrize("tokens", [0, 1])
def test_no_tokens_and_one(tokens, tile, combine):
    tensors, index, grad = inputs(0, torch.bfloat16, tokens=tokens, bias=True)
    found = run(tensors, index, grad, options=MLPOptions(tile=tile), combine=combine)
    assert found["y"].shape == (tokens, H)
    idle = [e for e in range(E) if e not in index]
    for name, tensor in zip(list(found)[1:], tensors, strict=True):
        assert found[name].shape == tensor.shape
        if name not in ("x", "weights"):
            assert found[name][idle].eq(0).all()
            assert tokens == 0 or found[name].ne(0).any()


@pytest.mark.parametrize("combine", ["slots", "experts"])
@pytest.mark.parametrize("tile", [None, 5])
def test_every_expert_for_every_token(tile, combine):
    data = inputs(0, k=E)
    found = run(*data, options=MLPOptions(tile=tile), combine=combine)
    expected = run(*data, call=reference)
    eps = torch.finfo(torch.float64).eps
    for name, truth in expected.items():
        assert (found[name] - truth).norm() / truth.norm() < 1000 * eps, name


def test_an_expert_twice_in_a_token_counts_twice():
    tensors, index, grad = inputs(0)
    index = index[:, :1].expand(-1, 2)
    found, expected = run(tensors, index, grad), run(tensors, index, grad, call=reference)
    assert (found["y"] - expected["y"]).norm() < 1e-12 * expected["y"].norm()


def test_strides_do_not_matter():
    tensors, index, grad = inputs(0, torch.bfloat16)
    expected = run(tensors, index, grad)
    spread = [torch.stack((t, t), -1)[..., 0] for t in tensors]
    assert not any(t.is_contiguous() for t in spread)
    leaves = [t.requires_grad_() for t in spread]
    y = moe(leaves[0], index, leaves[1], ExpertWeights(*leaves[2:]))
    found = [y, *torch.autograd.grad(y, leaves, torch.stack((grad, grad), -1)[..., 0])]
    for ours, (name, value) in zip(found, expected.items(), strict=True):
        assert torch.equal(ours, value), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_torchs_grouped_matmul_and_the_loop_have_the_same_bits(monkeypatch, layout, dtype):
    data = inputs(0, dtype, LAYOUTS[layout], bias=True)
    x = data[0][0]
    assert experts_grouped.has_native(x, data[0][2].transpose(1, 2))
    native = run(*data, LAYOUTS[layout])
    monkeypatch.setattr(experts_grouped, "_native", None)
    loop = run(*data, LAYOUTS[layout])
    for name, value in native.items():
        assert torch.equal(value, loop[name]), name


def test_widths_that_torchs_grouped_matmul_refuses():
    """7 bf16 elements are 14 bytes, and strides must be multiples of 16."""
    torch.manual_seed(0)
    x = torch.randn(5, 7, dtype=torch.bfloat16)
    bank = torch.randn(3, 10, 7, dtype=torch.bfloat16), torch.randn(3, 7, 5, dtype=torch.bfloat16)
    index, weights = torch.tensor([[0], [2], [2], [0], [1]]), torch.ones(5, 1, dtype=x.dtype)
    assert not experts_grouped.has_native(x, bank[0].transpose(1, 2))
    y = moe(x, index, weights, ExpertWeights(*bank))
    assert torch.equal(y, moe(x, index, weights, ExpertWeights(*bank), combine="experts"))


# ---- what is refused -----------------------------------------------------------------------------


def change(position, value):
    def apply(tensors, index):
        tensors = list(tensors)
        tensors[position] = value(tensors[position])
        return tensors, index

    return apply


BAD = {
    "x of three axes": (change(0, lambda t: t[None]), r"x has shape \(1, 37, 48\)"),
    "x too narrow": (change(0, lambda t: t[:, :40]), "inputs of width 48, x has 40"),
    "odd fused width": (change(2, lambda t: t[:, :79]), "gate_up has the odd width 79"),
    "down too narrow": (
        change(3, lambda t: t[:, :, :39]),
        r"down has shape \(6, 48, 39\)\n  expected: \[E, H, I\] = \(6, 48, 40\)",
    ),
    "an expert short": (change(3, lambda t: t[:5]), r"down has shape \(5, 48, 40\)"),
    "bias too short": (change(4, lambda t: t[:, :10]), r"gate_up_bias has shape \(6, 10\)"),
    "down bias too short": (change(5, lambda t: t[:, :10]), r"down_bias has shape \(6, 10\)"),
    "another dtype": (change(3, lambda t: t.double()), "down is float64, x is float32"),
    "quantised": (change(2, lambda t: t.to(torch.int8)), "gate_up is int8"),
    "meta": (change(3, lambda t: t.to("meta")), "down is on meta, x on cpu"),
    "half weights": (change(1, lambda t: t.half()), "weights are torch.float16"),
    "weights of other slots": (change(1, lambda t: t[:, :1]), r"weights has shape \(37, 1\)"),
    "index of other tokens": (lambda t, i: (t, i[1:]), r"index is torch.int64, shape \(36, 2\)"),
    "index of floats": (lambda t, i: (t, i.float()), "index is torch.float32"),
    "no slots": (lambda t, i: (t, i[:, :0]), "k is 0"),
    "no such expert": (lambda t, i: (t, i + 1), "index names expert 6\n  expected: 0 to 5"),
    "a negative expert": (lambda t, i: (t, i - 1), "index names expert -1"),
}


@pytest.mark.parametrize("tile", [None, 5])
@pytest.mark.parametrize("bad", BAD)
def test_bad_tensors_are_refused_by_name(bad, tile):
    apply, text = BAD[bad]
    tensors, index, _ = inputs(0, torch.float32, bias=True)
    tensors, index = apply(tensors, index)
    options = MLPOptions(tile=tile)
    with pytest.raises(UsageError, match=text):
        moe(tensors[0], index, tensors[1], ExpertWeights(*tensors[2:]), options=options)


def test_bad_options_are_refused():
    tensors, index, _ = inputs(0, torch.float32)
    experts = ExpertWeights(*tensors[2:])
    with pytest.raises(UsageError, match="activation 'swish' is not known"):
        moe(tensors[0], index, tensors[1], experts, act="swish")
    with pytest.raises(UsageError, match="combine is 'sum'"):
        moe(tensors[0], index, tensors[1], experts, combine="sum")
    for layout in (GateUpLayout(stacked=True), GateUpLayout("concat")):
        with pytest.raises(UsageError, match="layout"):
            moe(tensors[0], index, tensors[1], experts._replace(layout=layout))
    budget = 4 * WIDTH * 4 - 1
    with pytest.raises(UsageError, match=f"budget is {budget} bytes, one token needs {budget + 1}"):
        moe(tensors[0], index, tensors[1], experts, options=MLPOptions(budget=budget))


def test_a_budget_is_a_tile():
    data = inputs(0, torch.float32)
    tile, budget = MLPOptions(tile=3), MLPOptions(budget=3 * 4 * WIDTH * 4)
    by_tile, by_budget = run(*data, options=tile), run(*data, options=budget)
    assert all(torch.equal(by_tile[name], by_budget[name]) for name in by_tile)
    assert math.isfinite(by_tile["y"].sum())
