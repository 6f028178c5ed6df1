"""GatedMLP: transformers' bits and names, and projections that must be called as modules."""

from __future__ import annotations

import copy
import io
import pickle

import peft
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from gateup.errors import UsageError
from gateup.nn import GatedMLP
from gateup.nn.projections import parameters_of, why_not_plain
from gateup.ops import reference
from gateup.ops.activations import ACTIVATIONS
from gateup.ops.options import MLPOptions
from tests.numerics import assert_as_good

H, WIDTH = 48, 80


@pytest.fixture(autouse=True)
def _one_thread():
    was = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(was)


def pair(dtype=torch.float32, *, bias=False, **options):
    """transformers' LlamaMLP and ours, of one state dict."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=H, intermediate_size=WIDTH, mlp_bias=bias, num_attention_heads=4
    )
    stock = LlamaMLP(config).to(dtype)
    ours = GatedMLP(H, WIDTH, bias=bias, options=MLPOptions(**options), dtype=dtype)
    ours.load_state_dict(stock.state_dict())
    return stock, ours


def tokens(dtype=torch.float32, seed=0, shape=(2, 19, H)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def run(module, x, grad):
    x = x.detach().clone().requires_grad_()
    module.zero_grad()
    y = module(x)
    y.backward(grad)
    return {"y": y.detach(), "x": x.grad} | {
        name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize("save", ["all", "gate_up", "input"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bits_and_state_dict_of_transformers(dtype, bias, save):
    stock, ours = pair(dtype, bias=bias, save=save)
    theirs, found = (run(m, tokens(dtype), tokens(dtype, 1)) for m in (stock, ours))
    assert list(theirs) == list(found)
    for name, value in theirs.items():
        assert torch.equal(found[name], value), name
    assert list(ours.state_dict()) == list(stock.state_dict())
    stock.load_state_dict(ours.state_dict())


@pytest.mark.parametrize("tile", [None, 7])
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_every_activation_is_as_good_as_plain(act, tile):
    def setup(seed, dtype):
        torch.manual_seed(seed)
        mlp = GatedMLP(H, WIDTH, act, bias=True, options=MLPOptions("wide", "gate_up", tile))
        mlp = mlp.to(torch.bfloat16).to(dtype)
        return mlp, *(tokens(torch.bfloat16, s).to(dtype) for s in (seed, seed + 99))

    def plain(seed, dtype=torch.bfloat16):
        mlp, x, grad = setup(seed, dtype)
        p = dict(mlp.named_parameters())
        x = x.requires_grad_()
        y = reference.gated_mlp(
            x,
            *(p[f"{n}_proj.weight"] for n in ("gate", "up", "down")),
            **{f"{n}_bias": p[f"{n}_proj.bias"] for n in ("gate", "up", "down")},
            act=act,
        )
        y.backward(grad)
        return {"y": y.detach(), "x": x.grad} | {n: q.grad for n, q in p.items()}

    assert_as_good(
        lambda s: run(*setup(s, torch.bfloat16)), plain, lambda s: plain(s, torch.float64)
    )
    with pytest.raises(AssertionError):  # gate and up swapped, unless they may be
        assert_as_good(lambda s: swapped(*setup(s, torch.bfloat16)), plain, plain64(plain))


def plain64(plain):
    return lambda seed: plain(seed, torch.float64)


def swapped(mlp, x, grad):
    mlp.gate_proj, mlp.up_proj = mlp.up_proj, mlp.gate_proj
    return run(mlp, x, grad)


# ---- projections that must be called -------------------------------------------------------------


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Scale(nn.Module):
    def forward(self, weight):
        return 3 * weight


def hook_after(mlp, name):
    getattr(mlp, name).register_forward_hook(lambda m, args, out: out * 2)


def hook_before(mlp, name):
    getattr(mlp, name).register_forward_pre_hook(lambda m, args: (args[0] * 2,))


def subclass(mlp, name):
    old = getattr(mlp, name)
    new = Doubled(old.in_features, old.out_features, bias=False, dtype=old.weight.dtype)
    new.load_state_dict(old.state_dict())
    setattr(mlp, name, new)


def replaced_forward(mlp, name):
    linear = getattr(mlp, name)
    linear.forward = lambda x: 2 * nn.functional.linear(x, linear.weight)


def parametrized(mlp, name):
    parametrize.register_parametrization(getattr(mlp, name), "weight", Scale())


def sequential(mlp, name):
    setattr(mlp, name, nn.Sequential(getattr(mlp, name), nn.Tanh()))


MODULES = [hook_after, hook_before, subclass, replaced_forward, parametrized, sequential]


@pytest.mark.parametrize("options", [{}, {"save": "input"}, {"save": "gate_up", "tile": 7}])
@pytest.mark.parametrize("name", ["gate_proj", "up_proj", "down_proj"])
@pytest.mark.parametrize("make", MODULES, ids=lambda f: f.__name__)
def test_a_projection_that_is_more_than_its_weight_is_called(make, name, options):
    stock, ours = pair(torch.float64, **options)
    for module in (stock, ours):
        make(module, name)
    theirs, found = (run(m, tokens(torch.float64), tokens(torch.float64, 1)) for m in (stock, ours))
    changed = run(pair(torch.float64)[1], tokens(torch.float64), tokens(torch.float64, 1))
    assert not torch.allclose(theirs["y"], changed["y"])
    for key, value in theirs.items():
        torch.testing.assert_close(found[key], value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", MODULES, ids=lambda f: f.__name__)
def test_called_projections_have_the_bits_of_transformers(make, dtype):
    stock, ours = pair(dtype)
    for module in (stock, ours):
        make(module, "up_proj")
        module.to(dtype)
    theirs, found = (run(m, tokens(dtype), tokens(dtype, 1)) for m in (stock, ours))
    for key, value in theirs.items():
        assert torch.equal(found[key], value), key


@pytest.mark.parametrize(
    "targets",
    [["gate_proj"], ["up_proj"], ["down_proj"], ["gate_proj", "down_proj"],
     ["gate_proj", "up_proj", "down_proj"]],
    ids="+".join,
)  # fmt: skip
def test_lora_on_any_projections(targets):
    results = []
    for module in pair(torch.float32):
        torch.manual_seed(1)
        config = peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False)
        adapted = peft.inject_adapter_in_model(config, nn.ModuleDict({"mlp": module}))
        assert parameters_of(*adapted["mlp"].children()) is None
        results.append(run(adapted["mlp"], tokens(), tokens(seed=1)))
    theirs, found = results
    assert list(theirs) == list(found)
    assert sum("lora" in name for name in found) == 2 * len(targets)
    for key, value in theirs.items():
        torch.testing.assert_close(found[key], value)


def test_backward_hooks_and_hooks_on_every_module_are_called():
    _, ours = pair()
    x, seen = tokens(), []
    handle = ours.up_proj.register_full_backward_hook(lambda m, gi, go: seen.append("back"))
    run(ours, x, x)
    handle.remove()
    handle = nn.modules.module.register_module_forward_hook(
        lambda m, args, out: seen.append(type(m).__name__)
    )
    ours(x)
    handle.remove()
    ours(x)
    own = [name for name in seen if not name.startswith("_")]
    assert own == ["back", "Linear", "Linear", "Linear", "GatedMLP"]


def test_reasons_are_given_in_words():
    linear = nn.Linear(2, 2)
    assert why_not_plain(linear) is None
    assert why_not_plain(nn.Tanh()) == (
        "it is a torch.nn.modules.activation.Tanh, not a plain nn.Linear"
    )
    linear.register_forward_hook(lambda *args: None)
    assert why_not_plain(linear) == "it has hooks"
    linear = nn.Linear(2, 2)
    linear.forward = linear.forward
    assert why_not_plain(linear) == "its forward was replaced"
    linear = nn.Linear(2, 2)
    linear.weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.int8), requires_grad=False)
    assert why_not_plain(linear) == "its weight is torch.int8"


# ---- as a module ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(H,), (5, H), (2, 3, 4, H), (0, H), (2, 0, H)])
def test_any_number_of_axes(shape):
    stock, ours = pair()
    x = tokens(shape=shape)
    assert torch.equal(ours(x), stock(x))


def test_copies_and_pickles():
    _, ours = pair(save="input")
    x = tokens()
    buffer = io.BytesIO()
    torch.save(ours, buffer)
    buffer.seek(0)
    others = [
        copy.deepcopy(ours),
        pickle.loads(pickle.dumps(ours)),
        torch.load(buffer, weights_only=False),
    ]
    for other in others:
        assert other.options == ours.options
        assert torch.equal(other(x), ours(x))


def test_compiles_whole_and_once_for_all_lengths():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    _, ours = pair(save="gate_up", tile=16)
    compiled = torch.compile(ours, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (3, 19, 64):
        x = tokens(shape=(2, length, H))
        assert torch.equal(compiled(x), ours(x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_representation_names_act_and_options():
    text = repr(GatedMLP(H, WIDTH, "gelu_tanh", options=MLPOptions(tile=64)))
    assert "act=gelu_tanh" in text
    assert "tile=64" in text


def test_bad_arguments_are_refused():
    with pytest.raises(UsageError, match="activation 'swish' is not known"):
        GatedMLP(H, WIDTH, "swish")
    with pytest.raises(UsageError, match="intermediate_size is 0"):
        GatedMLP(H, 0)
    with pytest.raises(UsageError, match=r"hidden_size is 8\.0"):
        GatedMLP(8.0, 4)
    with pytest.raises(UsageError, match="hidden_size is '8'"):
        GatedMLP("8", 4)
    with pytest.raises(UsageError, match="x has"):
        GatedMLP(H, WIDTH)(torch.randn(2, H + 1))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"options": "input"}, "options is of type str"),
        ({"options": MLPOptions(budget=799)}, "budget is 799 bytes, one token needs 800"),
        ({"dtype": torch.int8}, "dtype is torch.int8"),
        ({"dtype": "bfloat16"}, "dtype is 'bfloat16'"),
        ({"act": None}, "activation None is not known"),
    ],
)
def test_what_could_not_run_is_refused_where_it_is_made(wrong, words):
    with pytest.raises(UsageError, match=words):
        GatedMLP(16, 100, **{"dtype": torch.bfloat16, **wrong})


def test_a_budget_counts_the_dtype_that_was_read():
    options = MLPOptions(budget=800)
    tensors = GatedMLP(16, 100, dtype=torch.bfloat16).to_state_dict()
    assert GatedMLP.from_state_dict(tensors, options=options).options is options
    with pytest.raises(UsageError, match="one token needs 1600"):
        GatedMLP.from_state_dict({n: t.float() for n, t in tensors.items()}, options=options)
