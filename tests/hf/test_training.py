"""Training a patched model the ways people train: Trainer, checkpointing, autocast, compile."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import Trainer, TrainingArguments

import gateup
from gateup.hf.forward import Forward
from gateup.ops.options import MLPOptions
from tests.hf.families import build, differing, step, tokens
from tests.numerics import assert_as_good

FAMILIES = ("llama", "phi3", "qwen3_moe", "gpt_oss")
MODES = [MLPOptions(), MLPOptions(save="gate_up"), MLPOptions("wide", "input", tile=8)]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pair(family: str, options: MLPOptions | None = None, **config: Any) -> tuple[Any, Any]:
    """The stock model in training mode, and its patched copy."""
    stock = build(family, **config).train()
    ours = copy.deepcopy(stock)
    gateup.patch(ours, options=options, quiet=True)
    return stock, ours


@pytest.mark.parametrize("family", FAMILIES)
def test_trainer_takes_the_same_step(family: str, tmp_path: Path) -> None:
    ids = tokens(shape=(4, 9))
    data = [{"input_ids": row, "labels": row} for row in ids]
    stock, ours = pair(family)
    for name, model in (("stock", stock), ("ours", ours)):
        arguments = TrainingArguments(
            output_dir=str(tmp_path / name),
            max_steps=2,
            per_device_train_batch_size=2,
            learning_rate=1e-2,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
            seed=0,
        )
        # The loader and the scheduler warn of what is theirs alone.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Trainer(model=model, args=arguments, train_dataset=data).train()
    before = build(family).state_dict()
    assert differing(ours.state_dict(), stock.state_dict()) == []
    assert len(differing(ours.state_dict(), before)) > 10


def checkpoint(model: Any, reentrant: bool) -> None:
    """transformers 5.20 or so renamed the method."""
    name = "activation_checkpointing_enable"
    enable = getattr(model, name, None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": reentrant})


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_checkpointing_gives_the_same_bits(family: str, reentrant: bool) -> None:
    stock, ours = pair(family)
    want = step(stock, tokens())
    checkpoint(ours, reentrant)
    if reentrant:
        ours.enable_input_require_grads()
    assert differing(step(ours, tokens()), want) == []


@pytest.mark.parametrize("options", MODES[1:], ids=["gate_up", "wide-input-8"])
def test_checkpointing_with_other_modes(options: MLPOptions) -> None:
    _, plain = pair("llama", options)
    checkpointed = copy.deepcopy(plain)
    checkpoint(checkpointed, False)
    assert differing(step(checkpointed, tokens()), step(plain, tokens())) == []


@pytest.mark.parametrize("options", MODES, ids=["default", "gate_up", "wide-input-8"])
@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_autocast_is_as_good_as_stock(family: str, options: MLPOptions) -> None:
    """fp32 weights, bf16 in between. Routed models are compared module by module, below: near a
    tie bf16 logits choose another expert than float64's."""
    stock, ours = pair(family, options)
    truth = copy.deepcopy(stock).double()

    def cast(model: nn.Module, seed: int) -> dict[str, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            results = step(model, tokens(seed))
        return results | {"logits": results["logits"].float()}

    assert_as_good(
        lambda seed: cast(ours, seed),
        lambda seed: cast(stock, seed),
        lambda seed: step(truth, tokens(seed)),
    )


@pytest.mark.parametrize("family", ["llama", "phi3", "qwen3_moe", "gpt_oss"])
@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
def test_autocast_has_the_same_bits(family: str, implementation: str) -> None:
    routed = family in ("qwen3_moe", "gpt_oss")
    stock, ours = pair(family, experts_implementation=implementation if routed else None)
    with torch.autocast("cpu", torch.bfloat16):
        want = step(stock, tokens())
        assert differing(step(ours, tokens()), want) == []


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_compile_in_one_graph_for_every_length(family: str) -> None:
    stock, ours = pair(family)
    counter = CompileCounterWithBackend("aot_eager")
    mlp = ours.model.layers[0].mlp
    compiled = torch.compile(mlp, backend=counter, fullgraph=True, dynamic=True)
    for length in (5, 9, 13):
        x = torch.randn(2, length, 32, requires_grad=True)
        got, want = compiled(x), stock.model.layers[0].mlp(x)
        torch.testing.assert_close(got, want)
        (a,), (b,) = torch.autograd.grad(got.sum(), x), torch.autograd.grad(want.sum(), x)
        torch.testing.assert_close(a, b)
    assert counter.frame_count == 1
    # Other options are other code; a guard must notice.
    gateup.patch(ours, options=MLPOptions(tile=3), quiet=True)
    torch.testing.assert_close(compiled(x), want)
    assert counter.frame_count == 2
    gateup.unpatch(ours)
    torch.testing.assert_close(compiled(x), want)
    assert counter.frame_count == 3


def test_whole_models_compile() -> None:
    stock, ours = pair("llama")
    compiled = torch.compile(ours.eval(), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        got = compiled(input_ids=tokens(), use_cache=False).logits
        want = stock.eval()(input_ids=tokens()).logits
    torch.testing.assert_close(got, want)


def test_accelerates_hooks_before_and_after() -> None:
    stock, ours = pair("llama")
    want = step(stock, tokens())
    seen: list[str] = []

    class Watch(ModelHook):  # type: ignore[misc]
        def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            seen.append(type(module).__name__)
            return args, kwargs

    hooked = build("llama").train()
    mlp = hooked.model.layers[0].mlp
    add_hook_to_module(mlp, Watch())
    add_hook_to_module(mlp.up_proj, Watch())
    gateup.patch(hooked, quiet=True)
    assert isinstance(mlp._old_forward, Forward)
    assert differing(step(hooked, tokens()), want) == []
    assert seen == ["LlamaMLP", "Linear"]
    assert len(gateup.unpatch(hooked)) == 2
    seen.clear()
    assert differing(step(hooked, tokens()), want) == []
    assert seen == ["LlamaMLP", "Linear"]

    add_hook_to_module(ours.model.layers[1].mlp, Watch())
    assert differing(step(ours, tokens()), want) == []
    assert len(gateup.unpatch(ours)) == 2
    remove_hook_from_module(ours.model.layers[1].mlp)
    assert differing(step(ours, tokens()), want) == []


def test_tied_and_frozen_weights() -> None:
    stock, ours = pair("llama")
    for model in (stock, ours):
        model.model.layers[1].mlp.up_proj.weight = model.model.layers[0].mlp.gate_proj.weight
        model.model.layers[0].mlp.down_proj.weight.requires_grad_(False)
    want = step(stock, tokens())
    assert "model.layers.0.mlp.down_proj.weight" not in want
    assert differing(step(ours, tokens()), want) == []


def test_parts_in_two_dtypes_are_refused_by_name() -> None:
    _, ours = pair("llama")
    ours.model.layers[0].mlp.up_proj.double()
    with pytest.raises(gateup.errors.UsageError, match="up is float64"):
        step(ours, tokens())
