"""The forward follows the module: its activation, torch.func's transforms, torch.export."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gateup
from gateup.ops.options import MLPOptions
from tests.hf.families import build, differing, step, tokens

OTHER = MLPOptions(rounding="wide", save="input", tile=3)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """On two, torch's batched_mm adds up gradients in another order from run to run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pair(family: str, options: MLPOptions, **config: Any) -> tuple[Any, Any]:
    stock = build(family, **config)
    ours = copy.deepcopy(stock)
    gateup.patch(ours, options=options, quiet=True)
    return stock, ours


def halved(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output / 2


def activations(model: nn.Module) -> list[nn.Module]:
    named = ("act_fn", "activation_fn")
    return [m for n, m in model.named_modules() if n.endswith(named)]


def hooked(model: nn.Module) -> None:
    for act in activations(model):
        act.register_forward_hook(halved)


def replaced(model: nn.Module) -> None:
    for module in model.modules():
        for name in ("act_fn", "activation_fn"):
            if name in module._modules:
                setattr(module, name, nn.ReLU())


@pytest.mark.parametrize("options", [MLPOptions(), OTHER], ids=str)
@pytest.mark.parametrize("change", [hooked, replaced])
@pytest.mark.parametrize(
    ("family", "implementation"),
    [("llama", None), ("phi3", None)]
    + [("mixtral", name) for name in ("eager", "grouped_mm", "batched_mm")],
)
def test_a_changed_activation_computes(
    family: str,
    implementation: str | None,
    change: Callable[[nn.Module], None],
    options: MLPOptions,
) -> None:
    stock, ours = pair(family, options, experts_implementation=implementation)
    before = step(ours, tokens())
    change(stock)
    change(ours)
    want = step(stock, tokens())
    assert differing(step(ours, tokens()), want) == []
    assert "logits" in differing(before, want)


def test_another_limit_of_gpt_oss_computes() -> None:
    stock, ours = pair("gpt_oss", OTHER)
    for model in (stock, ours):
        for layer in model.model.layers:
            layer.mlp.experts.limit = 0.1
    assert differing(step(ours, tokens()), step(stock, tokens())) == []


def test_experts_gated_by_others_are_left() -> None:
    model = build("mixtral")
    for layer in model.model.layers:
        layer.mlp.experts._apply_gate = lambda fused: fused.chunk(2, -1)[0]
    with pytest.raises(gateup.errors.UsageError, match="gates in its own way"):
        gateup.patch(model, quiet=True)


@pytest.mark.parametrize(
    ("family", "options"),
    [(family, MLPOptions()) for family in ("llama", "phi3", "mixtral", "gpt_oss")]
    + [("llama", OTHER), ("phi3", OTHER)],
)
def test_the_functional_gradient(family: str, options: MLPOptions) -> None:
    stock, ours = pair(family, options, dtype=torch.float64, experts_implementation="eager")
    ids, parameters = tokens(), dict(ours.named_parameters())

    def loss(given: dict[str, Tensor]) -> Tensor:
        made = torch.func.functional_call(ours, given, (), {"input_ids": ids, "labels": ids})
        result: Tensor = made.loss
        return result

    got, want = torch.func.grad(loss)(parameters), step(stock, ids)
    for name in want.keys() - {"logits"}:
        torch.testing.assert_close(got[name], want[name])


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_export_of_one_mlp(family: str) -> None:
    stock, ours = pair(family, MLPOptions(save="gate_up"))
    axes = (torch.export.Dim.AUTO, torch.export.Dim.AUTO)
    made = torch.export.export(
        ours.model.layers[0].mlp, (torch.randn(2, 5, 32),), dynamic_shapes=(dict(enumerate(axes)),)
    )
    x = torch.randn(3, 9, 32)
    torch.testing.assert_close(made.module()(x), stock.model.layers[0].mlp(x))
