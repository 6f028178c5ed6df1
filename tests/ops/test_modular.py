"""The gated MLP over modules: the same results and gradients as calling them one by one."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn

from gateup.errors import UsageError
from gateup.ops.modular import gated_mlp_modules
from gateup.ops.options import MLPOptions
from tests.numerics import assert_as_good
from tests.ops.inputs import H, I, saved_bytes

OPTIONS = [
    MLPOptions(rounding=rounding, save=save, tile=tile)
    for rounding, save, tile in itertools.product(
        ("hf", "wide"), ("all", "gate_up", "input"), (None, 25)
    )
]


class LowRank(nn.Module):
    """A projection that is no nn.Linear: a frozen base, a trained addition of rank 8, dropout."""

    def __init__(self, inputs, outputs, dropout):
        super().__init__()
        self.out_features = outputs
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(8, inputs) / inputs**0.5)
        self.b = nn.Parameter(torch.randn(outputs, 8) / 8)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.base(x) + self.dropout(x) @ self.a.t() @ self.b.t()


def modules(seed, dtype, dropout=0.0):
    torch.manual_seed(seed)
    return nn.ModuleList((LowRank(H, I, dropout), nn.Linear(H, I), LowRank(I, H, dropout))).to(
        dtype
    )


def stock(x, gate, up, down):
    return down(nn.functional.silu(gate(x)) * up(x))


def run(function, dtype, dropout=0.0, double=False):
    def at(seed):
        parts = modules(seed, dtype, dropout)
        x, dy = torch.randn(2, 30, H).to(dtype), torch.randn(2, 30, H).to(dtype)
        if double:
            parts, x, dy = parts.double(), x.double(), dy.double()
        x.requires_grad_()
        torch.manual_seed(99)
        y = function(x, *parts)
        y.backward(dy)
        grads = {n: p.grad for n, p in parts.named_parameters() if p.requires_grad}
        return {"y": y.detach(), "x": x.grad, **grads}

    return at


def ours(options):
    return lambda x, *m: gated_mlp_modules(x, *m, options=options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_as_good_as_the_modules_one_by_one(options, dtype):
    assert_as_good(run(ours(options), dtype), run(stock, dtype), run(stock, dtype, double=True))


def test_a_wrong_order_fails():
    dtype = torch.bfloat16
    for wrong in (
        lambda x, gate, up, down: gated_mlp_modules(x, up, gate, down),
        lambda x, *m: gated_mlp_modules(x, *m, act="relu"),
    ):
        with pytest.raises(AssertionError):
            assert_as_good(run(wrong, dtype), run(stock, dtype), run(stock, dtype, double=True))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("save", ["all", "gate_up", "input"])
def test_hf_rounding_has_the_modules_bits_and_their_random_numbers(save, dtype, dropout):
    want = run(stock, dtype, dropout)(0)
    got = run(ours(MLPOptions(save=save)), dtype, dropout)(0)
    after = torch.rand(1)
    run(stock, dtype, dropout)(0)
    for name, value in want.items():
        assert torch.equal(got[name], value), name
    # Backward leaves the generator where forward left it.
    assert torch.equal(after, torch.rand(1))


@pytest.mark.parametrize("save", ["all", "gate_up", "input"])
def test_dropout_in_tiles_is_drawn_once(save):
    """Doubling down_proj's input by its identity: y = 2·x where kept, and so is the gradient."""
    parts = [nn.Linear(4, 4, bias=False) for _ in range(3)]
    for part in parts:
        nn.init.eye_(part.weight)
    drop = nn.Sequential(parts[0], nn.Dropout(0.5))
    x = torch.ones(40, 4, requires_grad=True)
    y = gated_mlp_modules(
        x, drop, parts[1], parts[2], act="identity", options=MLPOptions(save=save, tile=7)
    )
    y.sum().backward()
    assert 20 < (y == 2).sum() < 140
    # d(2·x·x)/dx = 4 where kept, 0 where dropped: 2·y in both.
    assert torch.equal(x.grad, 2 * y)


@pytest.mark.parametrize(
    ("save", "tile", "per_token"),
    [
        ("all", None, 2 * H + 6 * I),
        ("gate_up", None, 2 * H + 4 * I),
        ("input", None, 2 * H),
        ("input", 5, 2 * H),
        ("all", 5, 2 * H + 6 * I),
        ("gate_up", 5, 2 * H + 4 * I),
    ],
)
def test_saved_bytes(save, tile, per_token):
    torch.manual_seed(0)
    parts = nn.ModuleList((nn.Linear(H, I), nn.Linear(H, I), nn.Linear(I, H))).bfloat16()
    x = torch.randn(20, H).bfloat16().requires_grad_()
    options = MLPOptions(save=save, tile=tile)
    kept = saved_bytes(
        lambda: gated_mlp_modules(x, *parts, options=options), list(parts.parameters())
    )
    assert kept == 20 * per_token


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_hooks_of_a_parameter_fire_once(options):
    parts = modules(0, torch.float32)
    fired = {name: [0, 0] for name, p in parts.named_parameters() if p.requires_grad}
    for name, p in parts.named_parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(
                lambda p, n=name: fired[n].__setitem__(0, fired[n][0] + 1)
            )
            p.register_hook(lambda g, n=name: fired[n].__setitem__(1, fired[n][1] + 1))
    gated_mlp_modules(torch.randn(60, H), *parts, options=options).sum().backward()
    assert set(map(tuple, fired.values())) == {(1, 1)}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_second_backward_no_tokens_and_no_gradients(options):
    parts = modules(0, torch.float32)
    x = torch.randn(60, H, requires_grad=True)
    wanted = [x, *(p for p in parts.parameters() if p.requires_grad)]
    y = gated_mlp_modules(x, *parts, options=options)
    first = torch.autograd.grad(y.sum(), wanted, retain_graph=True)
    for a, b in zip(first, torch.autograd.grad(y.sum(), wanted), strict=True):
        assert torch.equal(a, b)
    empty = gated_mlp_modules(x[:0], *parts, options=options)
    empty.sum().backward()
    assert empty.shape == (0, H)
    assert torch.equal(parts[1].weight.grad, torch.zeros(I, H))
    with torch.no_grad():
        assert not gated_mlp_modules(x, *parts, options=options).requires_grad


@pytest.mark.parametrize("options", [o for o in OPTIONS if o.tile or o.save != "all"], ids=str)
def test_differentiating_twice_is_refused_by_name(options):
    parts = modules(0, torch.float64).requires_grad_(False)
    x = torch.randn(60, H, dtype=torch.float64, requires_grad=True)
    y = gated_mlp_modules(x, *parts, options=options)
    (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(UsageError, match="was differentiated twice"):
        grad.sum().backward()


def test_autocast_is_the_same_in_backward():
    parts = modules(0, torch.float32)
    x = torch.randn(60, H)

    def train(function):
        mine = copy.deepcopy(parts)
        with torch.autocast("cpu", torch.bfloat16):
            y = function(x, *mine)
        y.backward(torch.ones_like(y))
        return [y, *(p.grad for p in mine.parameters() if p.requires_grad)]

    for save in ("all", "gate_up", "input"):
        for a, b in zip(train(stock), train(ours(MLPOptions(save=save))), strict=True):
            assert torch.equal(a, b)


def test_a_forward_without_graph_leaves_no_cast_in_autocasts_cache():
    """A bf16 weight cached without its graph would cut the next forward's weight gradient off."""
    parts = modules(0, torch.float32)
    x = torch.randn(60, H)
    with torch.autocast("cpu", torch.bfloat16):
        gated_mlp_modules(x, *parts, options=MLPOptions(save="input")).sum()
        stock(x, *parts).float().sum().backward()
    assert parts[1].weight.grad is not None


def test_a_budget_needs_a_width():
    parts = modules(0, torch.float32)
    options = MLPOptions(save="input", budget=10 * MLPOptions().transient(I, 4))
    want = stock(x := torch.randn(60, H), *parts)
    torch.testing.assert_close(gated_mlp_modules(x, *parts, options=options), want)
    del parts[0].out_features
    with pytest.raises(UsageError, match=r"a LowRank, has no out_features"):
        gated_mlp_modules(x, *parts, options=options)


def test_what_does_not_fit_is_named():
    parts = modules(0, torch.float32)
    with pytest.raises(UsageError, match=r"gate has shape \(3, 112\), up \(3, 48\)"):
        gated_mlp_modules(torch.ones(3, H), parts[0], nn.Identity(), parts[2])
    with pytest.raises(UsageError, match="x is int64"):
        gated_mlp_modules(torch.ones(3, H).long(), *parts)
    with pytest.raises(UsageError, match="activation 'mish'"):
        gated_mlp_modules(torch.ones(3, H), *parts, act="mish")
