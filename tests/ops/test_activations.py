"""Activations against transformers' own, their derivatives, and the rule that judges accuracy."""

from __future__ import annotations

import pytest
import torch
from transformers.activations import ACT2FN

from gateup.errors import UsageError
from gateup.ops import reference
from gateup.ops.activations import ACTIVATIONS, activation
from tests.numerics import assert_as_good

# Values at -3, -1, 0, 1, 3, to four decimals.
KNOWN = {
    "relu": (0.0, 0.0, 0.0, 1.0, 3.0),
    "gelu": (-0.0041, -0.1587, 0.0, 0.8413, 2.9959),
    "silu": (-0.1423, -0.2689, 0.0, 0.7311, 2.8577),
}
HF_NAMES = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "sigmoid": "sigmoid",
    "identity": "linear",
}


def inputs(seed: int, shape=(64, 33), dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    # 5: gpt-oss's clamp at 7 is met on both sides.
    return [(torch.randn(shape, generator=generator) * 5).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("name", KNOWN)
def test_known_values(name):
    x = torch.tensor([-3.0, -1.0, 0.0, 1.0, 3.0])
    assert [round(v, 4) + 0.0 for v in activation(name).value(x).tolist()] == list(KNOWN[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", HF_NAMES)
def test_value_and_gradients_have_the_bits_of_transformers(name, dtype):
    gate, up, grad = inputs(0, dtype=dtype)
    theirs = ACT2FN[HF_NAMES[name]]
    g, u = gate.clone().requires_grad_(), up.clone().requires_grad_()
    product = theirs(g) * u
    product.backward(grad)
    act = activation(name)
    d_gate, d_up = act.gated_backward(grad, gate, up)
    assert torch.equal(act.gated(gate, up), product)
    assert torch.equal(d_gate, g.grad)
    assert torch.equal(d_up, u.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gpt_oss_has_the_bits_of_transformers(dtype):
    from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    config = GptOssConfig(hidden_size=4, intermediate_size=4, num_local_experts=1)
    config.swiglu_alpha, config.swiglu_limit = 1.702, 7.0
    experts = GptOssExperts(config)
    gate, up, grad = inputs(0, dtype=dtype)
    g, u = gate.clone().requires_grad_(), up.clone().requires_grad_()
    product = experts._apply_gate(torch.stack((g, u), -1).flatten(-2))
    product.backward(grad)
    act = activation("gpt_oss")
    assert torch.equal(act.gated(gate, up), product)
    d_gate, d_up = act.gated_backward(grad, gate, up)
    assert torch.equal(d_gate, g.grad)
    assert torch.equal(d_up, u.grad)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients_are_those_of_the_values(name):
    gate, up, grad = inputs(1)
    g, u = gate.clone().requires_grad_(), up.clone().requires_grad_()
    reference.act_and_mul(g, u, name).backward(grad)
    d_gate, d_up = activation(name).gated_backward(grad, gate, up)
    torch.testing.assert_close(d_gate, g.grad)
    torch.testing.assert_close(d_up, u.grad)


def test_unknown_activation_is_refused_by_name():
    with pytest.raises(UsageError) as caught:
        activation("swish")
    assert "activation 'swish' is not known" in str(caught.value)
    assert "silu" in str(caught.value)


def plain(seed, name="silu"):
    gate, up, _ = inputs(seed, dtype=torch.bfloat16)
    return activation(name).gated(gate, up)


def exact(seed):
    gate, up, _ = inputs(seed, dtype=torch.bfloat16)
    return activation("silu").gated(gate.double(), up.double())


def mutants():
    def swapped(seed):
        gate, up, _ = inputs(seed, dtype=torch.bfloat16)
        return activation("silu").gated(up, gate)

    def rough(seed):
        return (plain(seed).float() * (1 + 2**-7)).bfloat16()

    def one_bad(seed):
        y = plain(seed).clone()
        y[3, 3] += 1
        return y

    def unwritten(seed):
        y = torch.empty(64, 33, dtype=torch.bfloat16)
        y[1:] = plain(seed)[1:]
        return y

    return {
        "relu": lambda seed: plain(seed, "relu"),
        "zeros": lambda seed: torch.zeros_like(plain(seed)),
        "swapped": swapped,
        "rough": rough,
        "one bad element": one_bad,
        "unwritten row": unwritten,
        "float32": lambda seed: plain(seed).float(),
    }


@pytest.mark.parametrize("name", mutants())
def test_the_rule_refuses_what_is_wrong(name):
    with pytest.raises(AssertionError):
        assert_as_good(mutants()[name], plain, exact)


def test_the_rule_accepts_the_plain_path_and_a_better_one():
    assert_as_good(plain, plain, exact)
    assert_as_good(lambda seed: exact(seed).bfloat16(), plain, exact)
