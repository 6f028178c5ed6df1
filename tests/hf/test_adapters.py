"""PEFT's LoRA on any subset of the projections, put on before or after patching."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import gateup
from gateup.ops.options import MLPOptions
from tests.hf.families import build, differing, step, tokens
from tests.numerics import assert_as_good

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
SUBSETS = [s for n in (1, 2, 3) for s in combinations(PROJECTIONS, n)]
MODES = [
    MLPOptions(save="gate_up"),
    MLPOptions(save="input"),
    MLPOptions(save="all", tile=8),
    MLPOptions("wide", "input", tile=8),
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def with_lora(model: nn.Module, *targets: str, dropout: float = 0.0, **settings: Any) -> nn.Module:
    """LoRA whose B is not zero, so that every adapter gradient is."""
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=list(targets), lora_dropout=dropout, **settings
    )
    with warnings.catch_warnings():
        # PEFT reads a name that transformers 5.24 deprecates.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        # Adapters in the model's own dtype.
        adapted = get_peft_model(model, config, autocast_adapter_dtype=False)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return adapted.train()


def trained(results: dict[str, Tensor]) -> set[str]:
    return {name.split(".lora_")[0].rpartition(".")[2] for name in results if ".lora_" in name}


@pytest.mark.parametrize("subset", SUBSETS, ids="+".join)
def test_any_subset_before_and_after_patching(subset: tuple[str, ...]) -> None:
    want = step(with_lora(build("llama"), *subset), tokens())
    assert trained(want) == set(subset)

    before = with_lora(build("llama"), *subset)
    assert len(gateup.patch(before, quiet=True).patched) == 2
    assert differing(step(before, tokens()), want) == []

    model = build("llama")
    gateup.patch(model, quiet=True)
    after = with_lora(model, *subset)
    assert differing(step(after, tokens()), want) == []

    # Merged, the projections are plain again.
    merged, stock = (m.merge_and_unload() for m in (after, with_lora(build("llama"), *subset)))
    with torch.no_grad():
        assert torch.equal(merged(tokens()).logits, stock(tokens()).logits)


def test_attention_adapters_leave_the_mlp_its_fast_path() -> None:
    want = step(with_lora(build("llama"), "q_proj"), tokens())
    ours = with_lora(build("llama"), "q_proj")
    gateup.patch(ours, quiet=True)
    assert differing(step(ours, tokens()), want) == []


@pytest.mark.parametrize("target", ["gate_up_proj", "down_proj"])
def test_the_fused_projection_of_phi3(target: str) -> None:
    want = step(with_lora(build("phi3"), target), tokens())
    ours = with_lora(build("phi3"), target)
    gateup.patch(ours, quiet=True)
    assert trained(want) == {target}
    assert differing(step(ours, tokens()), want) == []


@pytest.mark.parametrize(
    ("family", "targets", "options"),
    [
        *(("llama", PROJECTIONS, options) for options in MODES),
        ("llama", ("up_proj",), MODES[-1]),
        *(("phi3", ("gate_up_proj", "down_proj"), options) for options in MODES[::3]),
    ],
)
def test_other_options_are_as_good_as_stock(
    family: str, targets: tuple[str, ...], options: MLPOptions
) -> None:
    # One layer: what the MLP does is not drowned in the layers after it.
    stock = with_lora(build(family, torch.bfloat16, num_hidden_layers=1), *targets)
    ours, truth = copy.deepcopy(stock), copy.deepcopy(stock).double()
    gateup.patch(ours, options=options, quiet=True)
    assert_as_good(
        *(lambda seed, m=m: step(m, tokens(seed, (2, 33))) for m in (ours, stock, truth))
    )


@pytest.mark.parametrize("save", ["all", "gate_up", "input"])
def test_dropout_draws_the_same_numbers(save: Any) -> None:
    stock = with_lora(build("llama"), *PROJECTIONS, dropout=0.5)
    ours = copy.deepcopy(stock)
    gateup.patch(ours, options=MLPOptions(save=save), quiet=True)
    torch.manual_seed(3)
    want = step(stock, tokens())
    torch.manual_seed(3)
    assert differing(step(ours, tokens()), want) == []
    torch.manual_seed(4)
    assert differing(step(ours, tokens()), want) != []


def test_experts_adapted_as_parameters() -> None:
    settings = {"target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}

    def adapted() -> nn.Module:
        return with_lora(build("qwen3_moe", mlp_only_layers=[]), **settings)

    want = step(adapted(), tokens())
    ours = adapted()
    assert {p.cls for p in gateup.patch(ours, quiet=True).patched} == {"Qwen3MoeExperts"}
    assert sum("lora_" in name for name in want) == 8
    assert differing(step(ours, tokens()), want) == []


class Int8Linear(nn.Module):
    """What quantised layers have in common: a weight that F.linear cannot take."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.scale = nn.Buffer(linear.weight.detach().abs().amax() / 127)
        self.weight = nn.Parameter((linear.weight / self.scale).to(torch.int8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype))


@pytest.mark.parametrize("options", [MLPOptions(), MLPOptions(save="input")], ids=["all", "input"])
@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_quantised_projections_are_called(family: str, options: MLPOptions) -> None:
    stock = build(family, mlp_bias=False)
    for layer in stock.model.layers:
        for name, child in list(layer.mlp.named_children()):
            if isinstance(child, nn.Linear):
                setattr(layer.mlp, name, Int8Linear(child))
    ours = copy.deepcopy(stock)
    assert len(gateup.patch(ours, options=options, quiet=True).patched) == 2
    assert differing(step(ours, tokens()), step(stock, tokens())) == []


def test_parametrized_projections_are_called() -> None:
    stock = build("llama")
    for layer in stock.model.layers:
        parametrizations.weight_norm(layer.mlp.gate_proj)
    ours = copy.deepcopy(stock)
    gateup.patch(ours, quiet=True)
    want = step(stock, tokens())
    assert "model.layers.0.mlp.gate_proj.parametrizations.weight.original0" in want
    assert differing(step(ours, tokens()), want) == []
