"""The expert op: transformers' bits, the per-token loop, gradients, and torch's machinery."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from transformers import GptOssConfig, MixtralConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from gateup.errors import UsageError
from gateup.ops.moe import STACKED, ExpertWeights, moe, reference
from gateup.ops.options import MLPOptions
from tests.numerics import assert_as_good
from tests.ops.moe_cases import (
    COMBINATIONS,
    GPT_OSS,
    LAYOUTS,
    SAVES,
    WIDTH,
    E,
    H,
    inputs,
    run,
    settings,
)


@pytest.fixture(autouse=True)
def _one_thread():
    was = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(was)


def theirs(kind, tensors, index, grad, implementation):
    """The same from transformers' experts module."""
    if kind == "mixtral":
        config = MixtralConfig(hidden_size=H, intermediate_size=WIDTH, num_local_experts=E)
        module = MixtralExperts(config)
    else:
        config = GptOssConfig(hidden_size=H, intermediate_size=WIDTH, num_local_experts=E)
        config.swiglu_alpha, config.swiglu_limit = 1.702, 7.0
        module = GptOssExperts(config)
    config._experts_implementation = implementation
    module.to(tensors[0].dtype)
    order = ["gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias"]
    with torch.no_grad():
        for name, value in zip(order, tensors[2:], strict=False):
            getattr(module, name).copy_(value)
    x, weights = (t.detach().clone().requires_grad_() for t in tensors[:2])
    y = module(x, index, weights)
    parameters = [getattr(module, name) for name, _ in zip(order, tensors[2:], strict=False)]
    return [y.detach(), *torch.autograd.grad(y, [x, weights, *parameters], grad)]


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize(
    ("dtype", "weights"),
    [
        (torch.float32, None),
        (torch.bfloat16, None),
        (torch.bfloat16, torch.float32),
        (torch.float16, None),
    ],
    ids=lambda v: str(v).removeprefix("torch."),
)
@pytest.mark.parametrize("implementation", ["eager", "grouped_mm"])
@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
def test_bits_of_transformers(kind, implementation, dtype, weights, save):
    oss = kind == "gpt_oss"
    layout = GPT_OSS if oss else STACKED
    tensors, index, grad = inputs(0, dtype, layout, bias=oss, weights=weights)
    expected = theirs(kind, tensors, index, grad, implementation)
    found = run(
        tensors,
        index,
        grad,
        layout,
        act="gpt_oss" if oss else "silu",
        options=MLPOptions(save=save),
        combine="experts" if implementation == "eager" else "slots",
    )
    for (name, ours), other in zip(found.items(), expected, strict=True):
        assert torch.equal(ours, other), name


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("rounding", "save", "tile", "combine"), COMBINATIONS)
def test_float64_is_the_loop_over_tokens(layout, rounding, save, tile, combine):
    act = "gpt_oss" if layout == "gpt-oss" else "gelu_tanh"
    data = inputs(1, layout=LAYOUTS[layout], bias=True)
    how = settings(rounding, save, tile, combine)
    found = run(*data, LAYOUTS[layout], act=act, **how)
    expected = run(*data, LAYOUTS[layout], call=reference, act=act)
    for name, truth in expected.items():
        # Sums of some hundred terms in another order: a few hundred units in the last place.
        error = (found[name] - truth).norm() / truth.norm()
        assert error < 1000 * torch.finfo(torch.float64).eps, (name, error)


def as_good(how, layout=STACKED, act="silu", *, bias=False, change=None, weights=None):
    """Hold bf16 to the rule; "plain" has the bits of transformers' grouped_mm."""

    def data(seed):
        return inputs(seed, torch.bfloat16, layout, bias=bias, weights=weights)

    def fast(seed):
        tensors, index, grad = data(seed)
        if change:
            tensors, index = change(tensors, index)
        return run(tensors, index, grad, layout, act=act, **how)

    def plain(seed):
        tensors, index, grad = data(seed)
        slots = {"options": MLPOptions(), "combine": "slots"}
        return run(tensors, index, grad, layout, act=act, **slots)

    def exact(seed):
        return truth(seed, layout, act, bias, weights)

    assert_as_good(fast, plain, exact)


@functools.cache
def truth(seed, layout, act, bias, weights):
    tensors, index, grad = inputs(seed, torch.bfloat16, layout, bias=bias, weights=weights)
    wide = [t.double() for t in tensors]
    return run(wide, index, grad.double(), layout, call=reference, act=act)


@pytest.mark.parametrize("weights", [None, torch.float32], ids=["bf16 weights", "float32 weights"])
@pytest.mark.parametrize(
    ("rounding", "save", "tile", "combine"), [c for c in COMBINATIONS if c[3] == "slots"]
)
def test_bf16_is_as_good_as_plain(rounding, save, tile, combine, weights):
    as_good(settings(rounding, save, tile, combine), weights=weights)


@pytest.mark.parametrize("tile", [None, 7])
@pytest.mark.parametrize("rounding", ["hf", "wide"])
def test_gpt_oss_is_as_good_as_plain(rounding, tile):
    as_good(settings(rounding, "input", tile, "slots"), GPT_OSS, "gpt_oss", bias=True)


MUTATIONS = {
    "zeros": lambda t, i: ([t[0], t[1], torch.zeros_like(t[2]), *t[3:]], i),
    "gate and up swapped": lambda t, i: ([*t[:2], t[2].roll(WIDTH, 1), *t[3:]], i),
    "another expert": lambda t, i: (t, (i + 1) % E),
    "slots swapped": lambda t, i: (t, i.flip(1)),
    "weights left out": lambda t, i: ([t[0], torch.ones_like(t[1]), *t[2:]], i),
    "no down bias": lambda t, i: ([*t[:5], torch.zeros_like(t[5])], i),
    "no gate bias": lambda t, i: ([*t[:4], torch.zeros_like(t[4]), t[5]], i),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_comparison_refuses_what_is_wrong(mutation):
    how = settings("wide", "input", 5, "slots")
    with pytest.raises(AssertionError):
        as_good(how, bias=True, change=MUTATIONS[mutation])


def test_the_comparison_refuses_relu_for_silu():
    how = {"options": MLPOptions("wide")}
    tensors, index, grad = inputs(0, torch.bfloat16)
    wide = [t.double() for t in tensors]
    with pytest.raises(AssertionError):
        assert_as_good(
            lambda s: run(tensors, index, grad, act="relu", **how),
            lambda s: run(tensors, index, grad),
            lambda s: run(wide, index, grad.double(), call=reference),
            seeds=[0],
        )


# ---- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounding", "save", "tile", "combine"), COMBINATIONS)
def test_gradcheck(rounding, save, tile, combine):
    torch.manual_seed(0)
    index = torch.tensor([[0, 2], [2, 0], [2, 3]])
    shapes = ((3, 4), (3, 2), (4, 6, 4), (4, 4, 3), (4, 6), (4, 4))
    leaves = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    how = settings(rounding, save, tile and 1, combine)

    def call(x, weights, *bank):
        return moe(x, index, weights, ExpertWeights(*bank), **how)

    assert torch.autograd.gradcheck(call, leaves)


def test_reference_differentiates_twice():
    torch.manual_seed(0)
    shapes = ((2, 3), (2, 2), (3, 4, 3), (3, 3, 2))
    leaves = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    index = torch.tensor([[0, 2], [2, 1]])

    def call(x, weights, *bank):
        return reference(x, index, weights, ExpertWeights(*bank))

    assert torch.autograd.gradgradcheck(call, leaves)


@pytest.mark.parametrize("tile", [None, 5])
def test_a_second_derivative_is_refused_by_name(tile):
    tensors, index, _ = inputs(0, torch.float32)
    leaves = [t.requires_grad_() for t in tensors]
    y = moe(leaves[0], index, leaves[1], ExpertWeights(*leaves[2:]), options=MLPOptions(tile=tile))
    (dx,) = torch.autograd.grad(y.square().sum(), leaves[0], create_graph=True)
    with pytest.raises(UsageError, match=r"gateup\.ops\.moe was differentiated twice"):
        dx.sum().backward()


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("tile", [None, 5])
def test_backward_again_gives_the_same_and_hooks_fire_once(save, tile):
    tensors, index, grad = inputs(0, torch.bfloat16)
    leaves = [t.requires_grad_() for t in tensors]
    fired = []
    for i, leaf in enumerate(leaves):
        leaf.register_hook(lambda g, i=i: fired.append(i))
    options = MLPOptions(save=save, tile=tile)
    y = moe(leaves[0], index, leaves[1], ExpertWeights(*leaves[2:]), options=options)
    first = torch.autograd.grad(y, leaves, grad, retain_graph=True)
    assert sorted(fired) == list(range(len(leaves)))
    second = torch.autograd.grad(y, leaves, grad)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("tile", [None, 5])
@pytest.mark.parametrize("asked", list(itertools.product([True, False], repeat=6)))
def test_only_what_is_asked_for(asked, tile):
    tensors, index, grad = inputs(0, torch.float32, bias=True)
    expected = run(tensors, index, grad, options=MLPOptions(save="gate_up", tile=tile))
    leaves = [t.requires_grad_(a) for t, a in zip(tensors, asked, strict=True)]
    options = MLPOptions(save="gate_up", tile=tile)
    y = moe(leaves[0], index, leaves[1], ExpertWeights(*leaves[2:]), options=options)
    assert y.requires_grad == any(asked)
    if any(asked):
        y.backward(grad)
    for leaf, want, (name, value) in zip(leaves, asked, list(expected.items())[1:], strict=True):
        assert (leaf.grad is not None) == want, name
        assert not want or torch.equal(leaf.grad, value), name


@pytest.mark.parametrize("reentrant", [True, False])
def test_under_gradient_checkpointing(reentrant):
    tensors, index, grad = inputs(0, torch.bfloat16)
    expected = run(tensors, index, grad)
    leaves = [t.requires_grad_() for t in tensors]

    def call(x, weights, *bank):
        return moe(x, index, weights, ExpertWeights(*bank))

    y = checkpoint(call, *leaves, use_reentrant=reentrant)
    y.backward(grad)
    for leaf, value in zip(leaves, list(expected.values())[1:], strict=True):
        assert torch.equal(leaf.grad, value)


@pytest.mark.parametrize("combine", ["slots", "experts"])
@pytest.mark.parametrize("rounding", ["hf", "wide"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast(dtype, rounding, combine):
    """Its dtype is computed in, but for the grouped way of rounding "hf"; sums are float32."""
    tensors, index, grad = inputs(0, torch.float32)
    how = {"options": MLPOptions(rounding), "combine": combine}
    with torch.autocast("cpu", dtype):
        found = run(tensors, index, grad, **how)
    assert all(t.dtype == torch.float32 for t in found.values())
    apart = run(tensors, index, grad, **how)
    stays = rounding == "hf" and combine == "slots"
    for name, value in apart.items():
        assert torch.equal(found[name], value) == stays, name
        assert (found[name] - value).norm() < 4 * torch.finfo(dtype).eps * value.norm(), name


def test_autocast_leaves_x_in_another_dtype_than_the_weights():
    tensors, index, grad = inputs(0, torch.bfloat16)
    x = tensors[0].float()
    with torch.autocast("cpu", torch.bfloat16):
        found = run([x, *tensors[1:]], index, grad.float())
    assert found["y"].dtype == found["x"].dtype == torch.float32
    expected = run(tensors, index, grad)
    assert torch.equal(found["y"].bfloat16(), expected["y"])
    assert torch.equal(found["gate_up"], expected["gate_up"])


# ---- torch's machinery ---------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 3])
@pytest.mark.parametrize(("mode", "tile"), [("slots", 0), ("slots", 3), ("wide", 0)])
def test_opcheck(mode, tile, keep):
    tensors, index, _ = inputs(0, torch.bfloat16 if mode == "wide" else torch.float32, bias=True)
    leaves = [t.requires_grad_() for t in tensors]
    arguments = (leaves[0], index, *leaves[1:], "silu", "concat:out_in", mode, keep, tile)
    torch.library.opcheck(torch.ops.gateup.experts.default, arguments)


@pytest.mark.parametrize("tile", [None, 5])
def test_compiles_whole_and_once_for_all_lengths(tile):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    options = MLPOptions(save="gate_up", tile=tile)

    def call(x, index, weights, gate_up, down):
        return moe(x, index, weights, ExpertWeights(gate_up, down), options=options)

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (7, 37, 2, 300):
        tensors, index, grad = inputs(0, torch.float32, tokens=tokens)
        expected = run(tensors, index, grad, options=options)
        leaves = [t.requires_grad_() for t in tensors]
        y = compiled(leaves[0], index, *leaves[1:])
        found = [y, *torch.autograd.grad(y, leaves, grad)]
        for ours, (name, value) in zip(found, expected.items(), strict=True):
            assert torch.equal(ours, value), (tokens, name)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("rounding", "save", "tile", "combine"), COMBINATIONS)
def test_on_cuda(rounding, save, tile, combine):
    def on(device, dtype, call=moe, **how):
        def result(seed):
            tensors, index, grad = inputs(seed, torch.bfloat16)
            moved = [t.to(device, dtype) for t in tensors]
            found = run(moved, index.to(device), grad.to(device, dtype), call=call, **how)
            return {name: t.cpu() for name, t in found.items()}

        return result

    how = settings(rounding, save, tile, combine)
    plain = on("cuda", torch.bfloat16, combine=combine)
    truth = on("cpu", torch.float64, reference)
    assert_as_good(on("cuda", torch.bfloat16, **how), plain, truth)
