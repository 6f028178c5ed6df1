"""A budget is held against the widest of the modules it is for, in the weights' dtype."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaMLP

import gateup
from gateup.errors import UsageError
from gateup.hf.budget import sizes
from gateup.hf.table import row_of
from gateup.ops.options import MLPOptions


def mlp(width: int) -> LlamaMLP:
    return LlamaMLP(LlamaConfig(hidden_size=16, intermediate_size=width, num_attention_heads=2))


def test_the_widest_is_named_and_those_left_out_do_not_count() -> None:
    model = nn.ModuleDict({"narrow": mlp(8), "wide": mlp(100), "other": mlp(24)})
    options = MLPOptions(budget=1599)
    with pytest.raises(UsageError) as caught:
        gateup.patch(model, options=options)
    assert str(caught.value) == (
        "budget is 1599 bytes, one token needs 1600\n"
        "  where: wide\n"
        "  expected: at least 1600 (4 intermediates × 100 × 4 bytes), and n times that for n tokens"
        " at a time"
    )
    assert not gateup.patched(model)
    gateup.patch(model, options=options, include=["narrow", "other"], quiet=True)
    assert list(gateup.patched(model)) == ["narrow", "other"]


def test_weights_that_are_no_numbers_count_two_bytes() -> None:
    module = mlp(8)
    row = row_of(module)
    assert row is not None
    assert sizes(module, row) == (8, 4)
    module.gate_proj.weight = nn.Parameter(torch.zeros(8, 16, dtype=torch.uint8), False)
    assert sizes(module, row) == (8, 2)
    module.gate_proj = nn.Identity()
    assert sizes(module, row) is None
