"""Products with float32 results: every operand order, strides, accumulation, both ways."""

from __future__ import annotations

import itertools

import pytest
import torch

from gateup.ops import gemm
from gateup.ops.gemm import linear

HALVES = [torch.bfloat16, torch.float16]


def operands(dtype, m, k, n, flips):
    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    flip_a, flip_b = flips
    a = a.t().contiguous().t() if flip_a else a
    b = b.t().contiguous().t() if flip_b else b
    return a, b


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("flips", list(itertools.product((False, True), repeat=2)), ids=str)
def test_float32_results(monkeypatch, flips, dtype, mixed):
    torch.manual_seed(0)
    if not mixed:
        monkeypatch.setattr(gemm, "_mkl", lambda dtype: None)
        monkeypatch.setattr(gemm, "_UPCAST_COLUMNS", 5)
    for m, k, n in itertools.product((1, 3, 17), (1, 2, 33), (1, 4, 19)):
        a, b = operands(dtype, m, k, n, flips)
        for out in (torch.empty(m, n), torch.empty(m, n + 3)[:, :n]):
            gemm.gemm(a, b, out)
            want = a.double() @ b.double()
            # A float32 sum of k exact products: far below a 16-bit dtype's rounding.
            bound = k * 2.0**-23 * (a.double().abs() @ b.double().abs())
            assert ((out.double() - want).abs() <= bound).all()
            gemm.gemm(a, b, out, accumulate=True)
            assert ((out.double() - 2 * want).abs() <= 2 * bound + out.abs() * 2.0**-23).all()


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_linear_with_bias_and_odd_strides(dtype):
    torch.manual_seed(0)
    x, weight, bias = (
        torch.randn(7, 20).to(dtype),
        torch.randn(9, 20).to(dtype),
        torch.randn(9).to(dtype),
    )
    for view in (x, x.flip(0), x[::2], x[:, ::2]):
        w = weight if view.shape[1] == 20 else weight[:, ::2]
        out = torch.empty(view.shape[0], 9)
        linear(view, w, bias, out)
        want = view.double() @ w.double().t() + bias.double()
        torch.testing.assert_close(out, want.float(), rtol=2e-6, atol=2e-6)


def test_a_convention_that_does_not_agree_is_not_used():
    def wrong(a, b, out, accumulate):
        out.copy_(a.float() @ b.float())

    assert not gemm._agrees(wrong, torch.bfloat16)
