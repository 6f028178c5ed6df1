"""With the default options a patched model has the stock model's bits, in logits and gradients."""

from __future__ import annotations

import copy

import pytest
import torch

import gateup
from gateup.ops.activations import ACTIVATIONS
from gateup.ops.options import MLPOptions
from tests.hf.families import CLASSES, DENSE, FAMILIES, MOE, build, differing, step, tokens

IMPLEMENTATIONS = ("eager", "grouped_mm", "batched_mm")
CASES = [(f, None) for f in DENSE] + [(f, i) for f in MOE for i in IMPLEMENTATIONS]


@pytest.fixture(autouse=True)
def _one_thread():
    """The number of threads changes bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("family", "implementation"), CASES)
def test_the_bits_of_the_stock_model(
    family: str, implementation: str | None, dtype: torch.dtype
) -> None:
    stock = build(family, dtype, experts_implementation=implementation)
    ours = copy.deepcopy(stock)
    report = gateup.patch(ours, quiet=True)
    found = {cls: sum(p.cls == cls for p in report.patched) for cls in CLASSES[family]}
    assert found == CLASSES[family]
    assert not report.left
    for training in (True, False):
        ids = tokens(seed=int(training))
        theirs = step(stock.train(training), ids)
        assert differing(step(ours.train(training), ids), theirs) == []
        assert all(t.abs().max() > 0 for n, t in theirs.items() if "mlp" in n)
    gateup.unpatch(ours)
    assert differing(step(ours, ids), theirs) == []


@pytest.mark.parametrize("save", ["gate_up", "input"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_bits_do_not_depend_on_what_is_saved(family: str, save: str) -> None:
    stock = build(family, torch.bfloat16)
    ours = copy.deepcopy(stock)
    gateup.patch(ours, options=MLPOptions(save=save), quiet=True)  # type: ignore[arg-type]
    assert differing(step(ours, tokens()), step(stock, tokens())) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_the_comparison_sees_another_activation(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = build(family)
    ours = copy.deepcopy(stock)
    report = gateup.patch(ours, quiet=True)
    acts = dict(ACTIVATIONS)
    for name in {p.act for p in report.patched}:
        acts[name] = ACTIVATIONS["relu"]
    monkeypatch.setattr("gateup.ops.activations.ACTIVATIONS", acts)
    assert "logits" in differing(step(ours, tokens()), step(stock, tokens()))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_comparison_sees_gate_and_up_exchanged(family: str) -> None:
    stock = build(family)
    ours = copy.deepcopy(stock)
    report = gateup.patch(ours, quiet=True)
    with torch.no_grad():
        for patched in report.patched:
            exchange(ours.get_submodule(patched.name), patched.layout)
    assert "logits" in differing(step(ours, tokens()), step(stock, tokens()))


def exchange(module: torch.nn.Module, layout: str) -> None:
    if layout == "gate and up apart":
        module.gate_proj, module.up_proj = module.up_proj, module.gate_proj
        return
    fused = getattr(module.gate_up_proj, "weight", module.gate_up_proj)
    if "interleaved" in layout:
        fused.copy_(fused.unflatten(-1, (-1, 2)).flip(-1).flatten(-2))
    else:
        fused.copy_(torch.cat(fused.chunk(2, dim=-2)[::-1], dim=-2))


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_the_comparison_sees_a_missing_bias(family: str) -> None:
    stock = build(family)
    ours = copy.deepcopy(stock)
    gateup.patch(ours, quiet=True)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if "mlp" in name and "bias" in name and "router" not in name:
                parameter.zero_()
    assert "logits" in differing(step(ours, tokens()), step(stock, tokens()))
