"""What is refused before anything is computed."""

from __future__ import annotations

import pytest
import torch

from gateup.errors import UsageError
from gateup.model.layout import GateUpLayout
from gateup.ops.act_and_mul import act_and_mul, act_and_mul_split
from gateup.ops.classic import classic_ffn
from gateup.ops.gated_mlp import Weights, gated_mlp, gated_mlp_fused
from gateup.ops.moe import ExpertWeights, moe
from gateup.ops.options import MLPOptions
from tests.ops.inputs import tensors


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("options", [MLPOptions(), MLPOptions(rounding="wide", tile=3)])
def test_sparse_tensors_are_refused_by_name(options):
    x, weights, _ = tensors(0, torch.float32)
    sparse = weights._replace(up=weights.up.to_sparse_csr())
    with pytest.raises(UsageError, match=r"up is sparse_csr, shape \(112, 48\)"):
        gated_mlp(x, sparse, options=options)
    with pytest.raises(UsageError, match=r"x is sparse_coo, shape \(37, 48\)"):
        gated_mlp(x.to_sparse(), weights, options=options)


def test_what_is_no_tensor_is_refused_by_name():
    x, weights, _ = tensors(0, torch.float32)
    index, ones = torch.zeros(37, 1, dtype=torch.int64), torch.ones(37, 1)
    bank = ExpertWeights(torch.randn(2, 12, 48), torch.randn(2, 48, 6))
    layout = GateUpLayout("concat")
    for call, words in (
        (lambda: gated_mlp([1.0], weights), "x is of type list"),
        (lambda: gated_mlp(x, weights._replace(up=None)), "up is of type NoneType"),
        (lambda: gated_mlp_fused(x, weights.gate, None, layout=layout), "down is of type NoneType"),
        (lambda: classic_ffn(x, None, weights.down), "w1 is of type NoneType"),
        (lambda: moe(x, index.tolist(), ones, bank), "index is of type list"),
        (lambda: act_and_mul([1.0]), "gate_up is of type list"),
        (lambda: act_and_mul_split(x, None), "up is of type NoneType"),
    ):
        with pytest.raises(UsageError, match=words):
            call()


def test_what_belongs_elsewhere_is_refused_by_name():
    x, weights, _ = tensors(0, torch.float32)
    gate, up, down = weights[:3]
    index, ones = torch.zeros(37, 1, dtype=torch.int64), torch.ones(37, 1)
    bank = ExpertWeights(torch.randn(2, 12, 48), torch.randn(2, 48, 6))
    for call, words in (
        (lambda: gated_mlp(x, weights, options="input"), "options is of type str"),
        (lambda: classic_ffn(x, gate, down, options={"tile": 3}), "options is of type dict"),
        (lambda: moe(x, index, ones, bank, options=None), "options is of type NoneType"),
        (lambda: moe(x, index, ones, tuple(bank)), "experts is of type tuple"),
        (lambda: gated_mlp(x, (gate, up)), "weights is of type tuple"),
        (lambda: gated_mlp_fused(x, gate, down, layout="concat"), "layout is 'concat'"),
        (lambda: act_and_mul_split(x, x, rounding="bf16"), "rounding is 'bf16'"),
    ):
        with pytest.raises(UsageError, match=words):
            call()
    assert torch.equal(gated_mlp(x, (gate, up, down)), gated_mlp(x, Weights(gate, up, down)))


def test_experts_on_meta_and_any_tile():
    x, index, ones = torch.randn(5, 48), torch.zeros(5, 1, dtype=torch.int64), torch.ones(5, 1)
    bank = ExpertWeights(torch.randn(2, 12, 48), torch.randn(2, 48, 6))
    want = moe(x, index, ones, bank, options=MLPOptions(tile=5))
    assert torch.equal(moe(x, index, ones, bank, options=MLPOptions(tile=2**70)), want)
    assert torch.equal(moe(x, index, ones, bank, options=MLPOptions(budget=2**80)), want)
    carried = moe(
        *(t.to("meta") for t in (x, index, ones)),
        ExpertWeights(bank[0].to("meta"), bank[1].to("meta")),
    )
    assert carried.is_meta
    assert carried.shape == x.shape
