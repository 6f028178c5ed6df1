"""Layers whose weights are blocks: as modules, to PEFT, and what they refuse."""

from __future__ import annotations

import copy

import gguf
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gguf.quants import quantize
from torch import Tensor, nn

from gateup.errors import UsageError
from gateup.nn import GatedMLP, QuantEmbedding, QuantLinear
from gateup.nn.quant_experts import QuantExperts
from gateup.ops.options import MLPOptions
from gateup.ops.packed import PackedWeight, dequantise, pack


def blocks(n: int, k: int, seed: int = 0, *, native: bool | None = False) -> PackedWeight:
    random = np.random.default_rng(seed)
    values = (random.standard_normal((n, k)) * k**-0.5).astype(np.float32)
    raw = quantize(values, gguf.GGMLQuantizationType.Q8_0).view(np.uint8)
    return pack("q8_0", raw, n, k, native=native)


def test_linear_is_its_formula() -> None:
    w, bias = blocks(8, 32), torch.randn(8)
    layer, plain = QuantLinear(w, bias), nn.Linear(32, 8)
    plain.weight.data, plain.bias.data = dequantise(w), bias
    x, again = (torch.randn(3, 2, 32).requires_grad_() for _ in range(2))
    again.data = x.data
    y, expected = layer(x), plain(again)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    for result in (y, expected):
        result.square().sum().backward()
    torch.testing.assert_close(x.grad, again.grad, rtol=1e-4, atol=1e-4)
    assert layer.bias is not None
    torch.testing.assert_close(layer.bias.grad, plain.bias.grad, rtol=1e-4, atol=1e-4)


def test_as_a_module() -> None:
    layer = QuantLinear(blocks(8, 32), torch.zeros(8))
    assert isinstance(layer, nn.Linear)
    assert [n for n, _ in layer.named_parameters()] == ["bias"]
    assert set(layer.state_dict()) == {"blocks", "bias"}
    raw = layer.blocks.clone()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        layer.to(dtype)
        assert layer.weight.dtype == layer.bias.dtype == dtype
        assert layer.weight.shape == (8, 32)
        assert torch.equal(layer.blocks, raw)
    twin = copy.deepcopy(layer)
    assert twin.blocks.data_ptr() != layer.blocks.data_ptr()
    other = QuantLinear(blocks(8, 32, 1), torch.ones(8))
    other.load_state_dict(layer.state_dict())
    x = torch.randn(2, 32)
    assert torch.equal(other(x), layer(x))
    assert torch.equal(twin(x), layer(x))
    assert "in_features=32, out_features=8, bias=True, q8_0, raw" in repr(layer)


def test_the_weight_is_not_numbers() -> None:
    layer = QuantLinear(blocks(8, 32))
    weight = layer.weight
    assert not weight.requires_grad
    assert weight.data.shape == weight.detach().shape == (8, 32)
    assert torch.equal(weight.dequantize(), dequantise(layer.packed))
    for use in (
        lambda: weight.data.add_(1),
        lambda: weight.clone(),
        lambda: weight @ torch.ones(32),
        lambda: F.linear(torch.ones(32), weight),
    ):
        with pytest.raises(UsageError, match="the weight of this layer is q8_0 blocks"):
            use()
    for value in (nn.Parameter(torch.zeros(8, 32)), torch.zeros(8, 32), None):
        with pytest.raises(UsageError, match="cannot be replaced by a"):
            layer.weight = value  # type: ignore[assignment]
    assert layer.weight.shape == (8, 32)
    with pytest.raises(UsageError, match="no other start"):
        layer.reset_parameters()
    with pytest.raises(UsageError, match=r"bias has shape \(7,\)"):
        QuantLinear(blocks(8, 32), torch.zeros(7))


def test_embedding() -> None:
    w = blocks(16, 32)
    index = torch.tensor([[3, 0], [15, 3]])
    expected = F.embedding(index, dequantise(w))
    assert torch.equal(QuantEmbedding(w)(index), expected)
    half = QuantEmbedding(w, padding_idx=0, scale=32**0.5, dtype=torch.bfloat16)
    scale = torch.tensor(32**0.5).bfloat16()
    assert torch.equal(half(index), expected.bfloat16() * scale)
    assert isinstance(half, nn.Embedding)
    with pytest.raises(IndexError):
        QuantEmbedding(w)(torch.tensor([16]))


def mlp(native: bool | None) -> tuple[GatedMLP, GatedMLP]:
    """(in blocks, the same over dequantised weights)"""
    gate, up = blocks(64, 32, 1, native=native), blocks(64, 32, 2, native=native)
    down = blocks(32, 64, 3, native=native)
    module = GatedMLP.from_packed(gate, up, down)
    plain = GatedMLP(32, 64)
    for name, w in (("gate_proj", gate), ("up_proj", up), ("down_proj", down)):
        getattr(plain, name).weight.data = dequantise(w)
    return module, plain


@pytest.mark.parametrize("native", [False, None])
def test_gated_mlp(native: bool | None) -> None:
    module, plain = mlp(native)
    most = 3e-2 if module.gate_proj.packed.native else 1e-5
    x = torch.randn(5, 32)

    def error(y: Tensor, expected: Tensor) -> float:
        return float((y - expected).norm() / expected.norm())

    with torch.no_grad():
        assert error(module(x), plain(x)) < most
        module.options = MLPOptions(rounding="wide", tile=2)
        assert error(module(x), plain(x)) < most
        module.options = MLPOptions(rounding="wide")
        seen: list[str] = []
        module.up_proj.register_forward_hook(lambda *_: seen.append("up"))
        assert error(module(x), plain(x)) < most
        assert seen == ["up"]
    z, again = (x.clone().requires_grad_() for _ in range(2))
    module(z).square().sum().backward()
    plain(again).square().sum().backward()
    assert z.grad is not None
    assert again.grad is not None
    assert error(z.grad, again.grad) < 2 * most
    with pytest.raises(UsageError, match=r"not a plain nn\.Linear"):
        module.merge()
    with pytest.raises(UsageError, match=r"gate is \[64, 32\], up \[32, 64\]"):
        GatedMLP.from_packed(blocks(64, 32), blocks(32, 64), blocks(32, 64))


def test_one_kernel_where_nothing_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    module, _ = mlp(False)
    calls: list[int] = []
    monkeypatch.setattr(QuantLinear, "forward", lambda self, x: calls.append(1))
    with torch.no_grad():
        module(torch.randn(5, 32))
    assert not calls


def test_experts() -> None:
    """Against a sum over tokens and slots; raw experts lie in one memory, uncopied."""
    E, I, H = 5, 64, 32
    whole = [blocks(E * n, k, i).data for i, (n, k) in enumerate(((I, H), (I, H), (H, I)))]
    gate, up, down = (
        [pack("q8_0", part, n, k, native=False) for part in data.chunk(E)]
        for data, (n, k) in zip(whole, ((I, H), (I, H), (H, I)), strict=True)
    )
    experts = QuantExperts(gate, up, down)
    assert experts.gate_proj.data_ptr() == whole[0].data_ptr()
    x = torch.randn(7, H, requires_grad=True)
    index = torch.randint(0, E, (7, 2))
    index[:, 0] = torch.where(index[:, 0] == index[:, 1], (index[:, 1] + 1) % E, index[:, 0])
    weights = torch.rand(7, 2, requires_grad=True)
    g, u, d = ([dequantise(w) for w in part] for part in (gate, up, down))
    expected = torch.stack(
        [
            sum(  # type: ignore[misc]
                F.linear(F.silu(x[t] @ g[e].t()) * (x[t] @ u[e].t()), d[e]) * weights[t, s]
                for s, e in enumerate(index[t].tolist())
            )
            for t in range(7)
        ]
    )
    y = experts(x, index, weights)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    grads = torch.autograd.grad(y.square().sum(), (x, weights))
    for found, wanted in zip(
        grads, torch.autograd.grad(expected.square().sum(), (x, weights)), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    with pytest.raises(UsageError, match="the experts' up_proj are not alike"):
        QuantExperts(gate, up[:-1], down)


def test_blocks_assigned_from_anywhere_in_memory() -> None:
    """Memory-mapped files hold tensors at any byte."""
    layer = QuantLinear(blocks(64, 64, native=None))
    x = torch.randn(3, 64)
    expected = layer(x)
    state = layer.state_dict()
    held = state["blocks"]
    memory = torch.empty(held.numel() + 65, dtype=torch.uint8)
    at = -memory.data_ptr() % 64 + 1
    state["blocks"] = memory[at : at + held.numel()].view(held.shape).copy_(held)
    layer.load_state_dict(state, assign=True)
    assert torch.equal(layer(x), expected)
