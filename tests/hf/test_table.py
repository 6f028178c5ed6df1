"""The table against the installed transformers: classes, and every activation it has."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from torch import nn
from transformers.activations import ACT2CLS, ACT2FN

from gateup.hf.table import ROWS, TABLE, act_of, row_of
from gateup.ops.activations import ACTIVATIONS
from gateup.ops.options import MLPOptions
from tests.hf.families import CLASSES

LLAMA = ROWS[0]
SAME_BITS = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "linear": "identity",
    "relu": "relu",
    "relu2": "relu2",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "swish": "silu",
}
# The same function, rounded at each step.
SPELLED_OUT = {
    "gelu_python": "gelu",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
}


class Holder(nn.Module):
    def __init__(self, act: object) -> None:
        super().__init__()
        self.act_fn = act


def test_every_row_is_a_class_of_transformers_and_is_tested() -> None:
    for module, cls in TABLE:
        assert issubclass(getattr(import_module(module), cls), nn.Module)
    assert {row.cls for row in ROWS} == {cls for classes in CLASSES.values() for cls in classes}
    assert len(TABLE) == len(ROWS)


# Building xielu warns of a package that is not installed.
@pytest.mark.parametrize("name", sorted(set(ACT2CLS) - {"xielu"}))
def test_every_activation_of_transformers(name: str) -> None:
    act = ACT2FN[name]
    x = torch.linspace(-6, 6, 201, dtype=torch.float64)
    narrow, narrow_why = act_of(Holder(act), LLAMA, MLPOptions())
    wide, _ = act_of(Holder(act), LLAMA, MLPOptions(rounding="wide"))
    assert narrow == SAME_BITS.get(name)
    assert wide == (SAME_BITS | SPELLED_OUT).get(name)
    assert bool(narrow_why) == (narrow is None)
    for dtype in (torch.float32, torch.bfloat16):
        if narrow is not None:
            assert torch.equal(ACTIVATIONS[narrow].value(x.to(dtype)), act(x.to(dtype)))
    if wide is not None:
        # gelu_fast writes √(2/π) with ten digits.
        torch.testing.assert_close(ACTIVATIONS[wide].value(x), act(x), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("act", "name"),
    [
        (nn.functional.silu, "silu"),
        (nn.functional.gelu, "gelu"),
        (nn.GELU(), "gelu"),
        (nn.GELU(approximate="tanh"), "gelu_tanh"),
        (nn.SiLU(), "silu"),
        (nn.Identity(), "identity"),
        (torch.tanh, None),
        (lambda x: x, None),
    ],
)
def test_activations_of_torch(act: object, name: str | None) -> None:
    assert act_of(Holder(act), LLAMA, MLPOptions())[0] == name


def test_an_activation_whose_forward_was_replaced_is_not_known() -> None:
    act = nn.SiLU()
    act.forward = lambda x: x
    assert act_of(Holder(act), LLAMA, MLPOptions())[0] is None


def test_a_namesake_from_elsewhere_is_not_known() -> None:
    """Remote code often carries a LlamaMLP of its own."""

    class LlamaMLP(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    class SiLU(nn.Module):
        pass

    assert row_of(LlamaMLP()) is None
    assert act_of(Holder(SiLU()), LLAMA, MLPOptions())[0] is None
