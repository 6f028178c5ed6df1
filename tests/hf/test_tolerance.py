"""Every other combination of options is as good as stock, by the project's rule (numerics.py)."""

from __future__ import annotations

import copy
from importlib import import_module
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gateup
from gateup.ops.activations import ACTIVATIONS
from gateup.ops.layouts import word
from gateup.ops.options import MLPOptions
from tests.hf.families import FAMILIES, MOE, build, step, tokens
from tests.numerics import assert_as_good

# One family of each layout, wide enough that sums have something to lose.
LAYOUTS = {"llama": {}, "phi3": {}, "qwen3_moe": {"mlp_only_layers": []}, "gpt_oss": {}}
WIDTHS = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 1}
TOKENS = 37
COMBINATIONS = [
    MLPOptions(rounding, save, tile)
    for rounding, save, tile in product(("hf", "wide"), ("all", "gate_up", "input"), (None, 16))
    if (rounding, save, tile) != ("hf", "all", None)
]


def said(options: MLPOptions) -> str:
    return f"{options.rounding}-{options.save}-{options.tile}"


def mlp_of(family: str) -> nn.Module:
    widths = WIDTHS | ({"moe_intermediate_size": 80} if family == "qwen3_moe" else {})
    model = build(family, torch.bfloat16, **widths, **LAYOUTS[family])
    mlp: nn.Module = model.model.layers[0].mlp
    return getattr(mlp, "experts", mlp)


def run(module: nn.Module, experts: bool, seed: int) -> dict[str, Tensor]:
    """Output and all gradients of one module for inputs drawn from `seed`."""
    module.zero_grad()
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=generator).bfloat16()
        return drawn.to(next(module.parameters()))

    x = draw(TOKENS, WIDTHS["hidden_size"]).requires_grad_()
    grad = draw(TOKENS, WIDTHS["hidden_size"])
    extra: tuple[Tensor, ...] = ()
    if experts:
        index = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(TOKENS)])
        extra = index.to(x.device), draw(TOKENS, 2).abs().detach().requires_grad_()
    y = module(x, *extra)
    y.backward(grad)
    results = {"y": y.detach(), "x": x.grad}
    results |= {f"routing.{i}": e.grad for i, e in enumerate(extra) if e.requires_grad}
    return results | {n: p.grad for n, p in module.named_parameters()}


@pytest.mark.parametrize("options", COMBINATIONS, ids=said)
@pytest.mark.parametrize("family", LAYOUTS)
def test_any_combination_is_as_good_as_stock(family: str, options: MLPOptions) -> None:
    compare(family, options)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("options", COMBINATIONS, ids=said)
@pytest.mark.parametrize("family", LAYOUTS)
def test_on_cuda(family: str, options: MLPOptions) -> None:
    compare(family, options, "cuda")


def compare(family: str, options: MLPOptions, device: str = "cpu") -> None:
    experts = family in MOE
    stock = mlp_of(family).to(device)
    ours, truth = copy.deepcopy(stock), copy.deepcopy(stock).double()
    if experts:  # torch's grouped_mm has no float64
        truth.config._experts_implementation = "eager"
    gateup.patch(ours, options=options, quiet=True)
    assert_as_good(*(lambda seed, m=m: run(m, experts, seed) for m in (ours, stock, truth)))


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
@pytest.mark.parametrize("options", [MLPOptions(save="gate_up"), MLPOptions("wide", tile=16)])
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_experts_under_autocast(family: str, options: MLPOptions, implementation: str) -> None:
    stock = mlp_of(family).float()
    stock.config._experts_implementation = implementation
    ours, truth = copy.deepcopy(stock), copy.deepcopy(stock).double()
    truth.config._experts_implementation = "eager"
    gateup.patch(ours, options=options, quiet=True)

    def cast(module: nn.Module, seed: int) -> dict[str, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return run(module, True, seed)

    assert_as_good(
        lambda seed: cast(ours, seed),
        lambda seed: cast(stock, seed),
        lambda seed: run(truth, True, seed),
    )


@pytest.mark.parametrize("family", LAYOUTS)
def test_the_rule_refuses_another_activation(family: str, monkeypatch: Any) -> None:
    acts = dict.fromkeys(ACTIVATIONS, ACTIVATIONS["relu"])
    monkeypatch.setattr("gateup.ops.activations.ACTIVATIONS", acts)
    with pytest.raises(AssertionError, match="error"):
        compare(family, MLPOptions(save="gate_up"))


@pytest.mark.parametrize("family", ["phi3", "qwen3_moe", "gpt_oss"])
def test_the_rule_refuses_gate_and_up_exchanged(family: str, monkeypatch: Any) -> None:
    words = {"concat": "concat_up_first", "interleaved": "interleaved_up_first"}
    for module in ("gated_mlp", "moe"):
        home = import_module(f"gateup.ops.{module}")
        monkeypatch.setattr(home, "word", lambda layout: words[word(layout)])
    with pytest.raises(AssertionError, match="error"):
        compare(family, MLPOptions(save="gate_up"))


@pytest.mark.parametrize("options", [MLPOptions("wide", "input", 8)], ids=said)
@pytest.mark.parametrize("family", FAMILIES)
def test_whole_models_agree_in_float64(family: str, options: MLPOptions) -> None:
    """In float64 what remains is the order of sums: any difference in formula would show."""
    implementation = "eager" if family in MOE else None
    stock = build(family, torch.float64, experts_implementation=implementation)
    ours = copy.deepcopy(stock)
    gateup.patch(ours, options=options, quiet=True)
    got, want = step(ours, tokens()), step(stock, tokens())
    assert got.keys() == want.keys()
    for name in want:
        # bf16 rounding errors would be 1e13 times as large as float64's.
        torch.testing.assert_close(got[name], want[name], rtol=1e-6, atol=1e-9, msg=name)
