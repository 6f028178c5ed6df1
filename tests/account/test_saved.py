"""Saved bytes against autograd itself: by mode on one MLP, by model on whole ones, to the byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaMLP

from gateup.account.saved import Precision, saved_mlp
from gateup.account.workload import Save, Training, Workload
from gateup.model import presets
from gateup.model.quant.formats import stored_as
from tests.benchmark import benchmark

saved_bytes = benchmark("saved_bytes")

H, WIDTH, T = 24, 64, 16
Weights = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class ActUp(torch.autograd.Function):
    """act(gate)·up with a backward of its own: keeps gate and up."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = ctx.saved_tensors
        s = torch.sigmoid(gate)
        return grad * up * s * (1 + gate * (1 - s)), grad * F.silu(gate)


class Block(torch.autograd.Function):
    """The whole MLP; `kept` says what is saved beside the weights: x and gate and up, or x."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kept: str, *weights: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(x, weights[0]), F.linear(x, weights[1])
        ctx.save_for_backward(x, *((gate, up) if kept == "gate_up" else ()), *weights)
        return F.linear(F.silu(gate) * up, weights[2])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        raise AssertionError("only what is saved is looked at")


def mlp(save: Save, x: torch.Tensor, w: Weights) -> torch.Tensor:
    apply: Any = Block.apply
    if save in ("gate_up", "input"):
        out: torch.Tensor = apply(x, save, *w)
        return out
    gate, up = F.linear(x, w[0]), F.linear(x, w[1])
    apply = ActUp.apply
    return F.linear(apply(gate, up) if save == "all" else F.silu(gate) * up, w[2])


def formula(save: Save, dtype: str, *, frozen: bool = False) -> int:
    """Bytes per token of gateup's formula for the MLP of this file."""
    spec = saved_bytes.build_spec(
        {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": H,
            "intermediate_size": WIDTH,
            "num_attention_heads": 2,
            "num_hidden_layers": 1,
            "vocab_size": 32,
        },
        where="config",
        name="small",
    )
    plan = Training("lora" if frozen else "full", save=save)
    workload = Workload(compute_dtype=dtype, training=plan)
    precision = Precision(stored_as(spec.rows, dtype), workload, plan)
    return sum(t.value for t in saved_mlp(spec.layers[0], H, save, precision))


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("save", ["hf", "all", "gate_up", "input"])
def test_modes_of_one_mlp(save: Save, dtype: str) -> None:
    kind = saved_bytes.TORCH[dtype]
    shapes = ((WIDTH, H), (WIDTH, H), (H, WIDTH))
    weights = tuple(torch.randn(s, dtype=kind, requires_grad=True) for s in shapes)
    x = torch.randn(T, H, dtype=kind, requires_grad=True)
    with saved_bytes.SavedBytes(weights) as saved:
        mlp(save, x, weights)  # type: ignore[arg-type]
    assert saved.nbytes == T * formula(save, dtype)


@pytest.mark.parametrize(("save", "widths"), [("hf", 3), ("all", 2)])
def test_frozen_weights_keep_neither_input_nor_product(save: Save, widths: int) -> None:
    shapes = ((WIDTH, H), (WIDTH, H), (H, WIDTH))
    weights = tuple(torch.randn(s, dtype=torch.bfloat16) for s in shapes)
    x = torch.randn(T, H, dtype=torch.bfloat16, requires_grad=True)
    with saved_bytes.SavedBytes(weights) as saved:
        mlp(save, x, weights)  # type: ignore[arg-type]
    assert saved.nbytes == T * formula(save, "bf16", frozen=True) == T * widths * WIDTH * 2


def test_transformers_mlp_is_the_hf_mode() -> None:
    config = transformers.LlamaConfig(hidden_size=H, intermediate_size=WIDTH, num_attention_heads=2)
    module = LlamaMLP(config).to(torch.bfloat16)  # type: ignore[no-untyped-call]
    x = torch.randn(1, T, H, dtype=torch.bfloat16, requires_grad=True)
    with saved_bytes.SavedBytes(module.parameters()) as saved:
        module(x)
    assert saved.nbytes == T * (2 * H + 8 * WIDTH) == T * formula("hf", "bf16")


@pytest.mark.parametrize(
    ("save", "nbytes"),
    [("hf", 122_880), ("all", 94_208), ("gate_up", 65_536), ("input", 8_192)],
)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_llama_3_8b_per_token_and_layer(save: Save, nbytes: int, dtype: str) -> None:
    spec = presets.spec("llama-3-8b")
    plan = Training("full", save=save)
    workload = Workload(compute_dtype=dtype, training=plan)
    precision = Precision(stored_as(spec.rows, dtype), workload, plan)
    got = sum(t.value for t in saved_mlp(spec.layers[0], spec.hidden_size, save, precision))
    assert got == nbytes * (2 if dtype == "f32" else 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", saved_bytes.CASES, ids=lambda c: c.label)
def test_whole_models_to_the_byte(case: Any) -> None:
    spec, model = saved_bytes.build(case)
    plan = saved_bytes.plan_of(case, spec)
    assert saved_bytes.measured(case, spec, model) == saved_bytes.predicted(case, plan, spec)


@pytest.mark.filterwarnings("ignore")
def test_a_wrong_formula_would_show() -> None:
    """The comparison above notices one hidden state of one layer."""
    case = saved_bytes.CASES[0]
    spec, model = saved_bytes.build(case)
    wrong = (
        saved_bytes.predicted(case, saved_bytes.plan_of(case, spec), spec) + spec.hidden_size * 2
    )
    assert saved_bytes.measured(case, spec, model) != wrong
