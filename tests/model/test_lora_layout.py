"""Fused and split adapters add the same matrix, element for element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from gateup.errors import UsageError
from gateup.model.layout import SPLIT, GateUpLayout, join
from gateup.model.lora_layout import (
    fuse_gate_up,
    fuse_rows,
    fused_alpha,
    split_gate_up,
    split_rows,
)

H, WIDTH, R = 6, 8, 3
PHI3 = GateUpLayout(form="concat")
LAYOUTS = (
    PHI3,
    GateUpLayout(form="concat", order="up_gate"),
    GateUpLayout(form="interleaved", orientation="in_out", stacked=True),
)


def whole(rng: np.random.Generator, *shape: int) -> Any:
    """Small whole numbers: products and sums of them are exact in float64."""
    return rng.integers(-8, 9, shape).astype(np.float64)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_of_a_fused_adapter_add_the_rows_of_what_it_added(layout: GateUpLayout) -> None:
    rng = np.random.default_rng(0)
    a, b = whole(rng, R, H), whole(rng, 2 * WIDTH, R)
    (a_gate, b_gate), (a_up, b_up) = split_gate_up(a, b, layout)
    assert a_gate is a
    assert a_up is a
    assert b_gate.shape == b_up.shape == (WIDTH, R)
    joined = join(b_gate @ a_gate, b_up @ a_up, GateUpLayout(form=layout.form, order=layout.order))
    np.testing.assert_array_equal(joined, b @ a)


def test_phi3_rows_are_gates_then_ups() -> None:
    b = np.arange(2 * WIDTH * R).reshape(2 * WIDTH, R)
    (_, gate), (_, up) = split_gate_up(np.ones((R, H)), b, PHI3)
    np.testing.assert_array_equal(gate, b[:WIDTH])
    np.testing.assert_array_equal(up, b[WIDTH:])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ranks", [(3, 3), (2, 5)])
def test_a_fused_adapter_adds_what_its_parts_added(
    layout: GateUpLayout, ranks: tuple[int, int]
) -> None:
    rng = np.random.default_rng(1)
    gate, up = ((whole(rng, r, H), whole(rng, WIDTH, r)) for r in ranks)
    a, b = fuse_gate_up(gate, up, layout)
    assert a.shape == (sum(ranks), H)
    assert b.shape == (2 * WIDTH, sum(ranks))
    wanted = join(
        gate[1] @ gate[0], up[1] @ up[0], GateUpLayout(form=layout.form, order=layout.order)
    )
    np.testing.assert_array_equal(b @ a, wanted)


@pytest.mark.parametrize("rslora", [False, True])
def test_the_scale_stays_with_the_fused_alpha(rslora: bool) -> None:
    def scale(alpha: float, rank: int) -> float:
        return alpha / (math.sqrt(rank) if rslora else rank)

    for parts in (2, 3):
        fused = fused_alpha(16, parts, rslora=rslora)
        assert scale(fused, parts * R) == pytest.approx(scale(16, R), rel=1e-15)
    assert fused_alpha(16) == 32


def test_qkv_is_cut_by_heads_and_fuses_block_diagonally() -> None:
    rng = np.random.default_rng(2)
    a, b = whole(rng, R, H), whole(rng, 8, R)
    parts = split_rows(a, b, [4, 2, 2])
    np.testing.assert_array_equal(np.concatenate([pb @ pa for pa, pb in parts]), b @ a)
    fused_a, fused_b = fuse_rows(parts)
    assert fused_a.shape == (3 * R, H)
    np.testing.assert_array_equal(fused_b @ fused_a, b @ a)
    assert not fused_b[:4, R:].any()
    assert not fused_b[4:, :R].any()


def test_torch_tensors_keep_their_dtype() -> None:
    a, b = torch.ones(R, H, dtype=torch.bfloat16), torch.ones(2 * WIDTH, R, dtype=torch.bfloat16)
    gate, up = split_gate_up(a, b, PHI3)
    fused = fuse_gate_up(gate, up, PHI3)
    assert fused[1].dtype == torch.bfloat16
    assert torch.equal(fused[1] @ fused[0], b @ a)


def test_against_a_wrapped_phi3_layer_of_peft() -> None:
    """PEFT's own sum on a fused Linear is what two adapters on its halves give."""
    from peft import LoraConfig, inject_adapter_in_model

    torch.manual_seed(0)
    model = torch.nn.ModuleDict(
        {"gate_up_proj": torch.nn.Linear(H, 2 * WIDTH, bias=False)}
    ).double()
    weight = model["gate_up_proj"].weight.detach().clone()
    config = LoraConfig(r=R, lora_alpha=12, target_modules=["gate_up_proj"], lora_dropout=0.0)
    layer = inject_adapter_in_model(config, model)["gate_up_proj"]
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    torch.nn.init.normal_(b)
    x = torch.randn(5, H, dtype=torch.float64)
    parts = split_gate_up(a.detach().double(), b.detach().double(), PHI3)
    rows = [
        x @ (w + 12 / R * (pb @ pa)).T
        for w, (pa, pb) in zip(weight.split(WIDTH), parts, strict=True)
    ]
    torch.testing.assert_close(torch.cat(rows, -1), layer(x), rtol=1e-6, atol=1e-6)


def bad(which: str) -> None:
    a, b = np.ones((R, H)), np.ones((2 * WIDTH, R))
    half = (a, b[:WIDTH])
    if which == "rank":
        split_gate_up(a[:2], b, PHI3)
    elif which == "odd":
        split_gate_up(a, b[:-1], PHI3)
    elif which == "split":
        split_gate_up(a, b, SPLIT)
    elif which == "input":
        fuse_gate_up(half, (a[:, :4], b[:WIDTH]), PHI3)
    elif which == "rows":
        fuse_gate_up(half, (a, b[:4]), PHI3)
    elif which == "sizes":
        split_rows(a, b, [4, 4])
    elif which == "none":
        fuse_rows([])
    else:
        split_rows([1], b, [16])


@pytest.mark.parametrize(
    ("which", "text"),
    [
        ("rank", "A is [2, 6] and B is [16, 3]"),
        ("odd", "15 output rows, an odd number"),
        ("split", "gate and up are apart in this layout"),
        ("input", "the adapters' inputs are 4, 6 wide"),
        ("rows", "gate's B has 8 rows and up's has 4"),
        ("sizes", "B has 16 rows, the parts 4 + 4"),
        ("none", "no adapters to fuse"),
        ("list", "list is not an array"),
    ],
)
def test_refused(which: str, text: str) -> None:
    with pytest.raises(UsageError) as error:
        bad(which)
    assert text in str(error.value)
