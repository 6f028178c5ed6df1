"""PEFT's LoRA on any subset of the projections, adapters in float32 or in the base's dtype."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

from gateup.ops.modular import gated_mlp_modules
from gateup.ops.options import MLPOptions
from tests.numerics import assert_as_good
from tests.ops.inputs import H, I

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
SUBSETS = [s for n in (1, 2, 3) for s in itertools.combinations(PROJECTIONS, n)]


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(H, I, bias=False), nn.Linear(H, I, bias=False)
        self.down_proj = nn.Linear(I, H, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


def adapted(seed, targets, adapter_dtype, dropout=0.0):
    torch.manual_seed(seed)
    model = MLP().bfloat16()
    config = LoraConfig(r=4, lora_alpha=8, target_modules=list(targets), lora_dropout=dropout)
    model = inject_adapter_in_model(config, model)
    for name, p in model.named_parameters():
        if "lora_" in name:
            # B starts at zero: then nothing of A would be seen.
            p.data = torch.randn_like(p, dtype=torch.float32).mul(0.1).to(adapter_dtype)
    return model


def run(targets, adapter_dtype, options=None, dropout=0.0, double=False):
    def at(seed):
        model = adapted(seed, targets, adapter_dtype, dropout)
        x, dy = torch.randn(2, 30, H).bfloat16(), torch.randn(2, 30, H).bfloat16()
        if double:
            model, x, dy = copy.deepcopy(model).double(), x.double(), dy.double()
        x.requires_grad_()
        torch.manual_seed(7)
        if options is None:
            y = model(x)
        else:
            parts = (model.gate_proj, model.up_proj, model.down_proj)
            y = gated_mlp_modules(x, *parts, options=options)
        y.backward(dy)
        grads = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
        assert len(grads) == 2 * len(targets)
        return {"y": y.detach(), "x": x.grad, **grads}

    return at


@pytest.mark.parametrize("adapter_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("targets", SUBSETS, ids="+".join)
def test_bits_of_peft(targets, adapter_dtype):
    for save, dropout in itertools.product(("all", "gate_up", "input"), (0.0, 0.2)):
        want = run(targets, adapter_dtype, dropout=dropout)(0)
        got = run(targets, adapter_dtype, MLPOptions(save=save), dropout)(0)
        for name, value in want.items():
            assert torch.equal(got[name], value), (save, dropout, name)


@pytest.mark.parametrize("save", ["all", "gate_up", "input"])
@pytest.mark.parametrize("rounding", ["hf", "wide"])
@pytest.mark.parametrize("targets", [SUBSETS[0], SUBSETS[-1]], ids="+".join)
def test_tiles_are_as_good(targets, rounding, save):
    options = MLPOptions(rounding=rounding, save=save, tile=25)
    for dtype in (torch.float32, torch.bfloat16):
        assert_as_good(
            run(targets, dtype, options), run(targets, dtype), run(targets, dtype, double=True)
        )
