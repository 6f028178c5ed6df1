"""Fused gate and up in every layout, against the same weights apart."""

from __future__ import annotations

import itertools

import pytest
import torch

from gateup.errors import UsageError
from gateup.model.layout import GateUpLayout
from gateup.ops import tiled
from gateup.ops.gated_mlp import gated_mlp_fused
from gateup.ops.options import MLPOptions
from tests.numerics import assert_as_good
from tests.ops.inputs import H, I, exact, gradients, plain, saved_bytes, tensors

LAYOUTS = [
    GateUpLayout(*parts)
    for parts in itertools.product(
        ("concat", "interleaved"), ("gate_up", "up_gate"), ("out_in", "in_out")
    )
]
FUSED = ("gate_up", "down", "gate_up_bias", "down_bias")


def fuse(gate, up, layout):
    first, second = (gate, up) if layout.order == "gate_up" else (up, gate)
    if layout.form == "concat":
        return torch.cat((first, second))
    return torch.stack((first, second), 1).flatten(0, 1)


def laid(matrix, layout):
    return matrix.t().contiguous() if layout.orientation == "in_out" else matrix


def ours(layout, options, dtype, declared=None):
    def run(seed):
        x, w, dy = tensors(seed, dtype, (2, 30, H))
        weights = (
            laid(fuse(w.gate, w.up, layout), layout),
            laid(w.down, layout),
            fuse(w.gate_bias, w.up_bias, layout),
            w.down_bias,
        )
        return gradients(
            lambda x, gu, down, gub, db: gated_mlp_fused(
                x,
                gu,
                down,
                layout=declared or layout,
                gate_up_bias=gub,
                down_bias=db,
                options=options,
            ),
            x,
            weights,
            dy,
            FUSED,
        )

    return run


def apart(layout, dtype, how):
    """The split MLP's results, put together as the layout has them."""

    def run(seed):
        x, w, dy = tensors(seed, dtype, (2, 30, H))
        r = how(lambda x, *w: plain(x, *w), x, w, dy)
        return {
            "y": r["y"],
            "d_x": r["d_x"],
            "d_gate_up": laid(fuse(r["d_gate"], r["d_up"], layout), layout),
            "d_down": laid(r["d_down"], layout),
            "d_gate_up_bias": fuse(r["d_gate_bias"], r["d_up_bias"], layout),
            "d_down_bias": r["d_down_bias"],
        }

    return run


@pytest.mark.parametrize("tile", [None, 25])
@pytest.mark.parametrize("rounding", ["hf", "wide"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_layout(monkeypatch, layout, rounding, tile):
    # Small enough for the wide path to cut gate and up into blocks of columns.
    monkeypatch.setattr(tiled, "WIDE_ELEMENTS", 1)
    monkeypatch.setattr(tiled, "WIDE_COLUMNS", 50)
    dtype = torch.bfloat16
    for save in ("all", "gate_up", "input"):
        options = MLPOptions(rounding=rounding, save=save, tile=tile)
        assert_as_good(
            ours(layout, options, dtype),
            apart(layout, dtype, gradients),
            apart(layout, dtype, exact),
        )


@pytest.mark.parametrize("layout", LAYOUTS[::2], ids=str)
def test_another_layout_is_another_result(layout):
    dtype = torch.bfloat16
    for wrong in LAYOUTS[::2]:
        if wrong != layout:
            with pytest.raises(AssertionError):
                assert_as_good(
                    ours(layout, MLPOptions(), dtype, declared=wrong),
                    apart(layout, dtype, gradients),
                    apart(layout, dtype, exact),
                )


def test_saved_bytes_are_those_of_the_split_form():
    x, w, _ = tensors(0, torch.bfloat16, (9, H))
    layout = GateUpLayout("interleaved")
    gate_up, down = fuse(w.gate, w.up, layout).requires_grad_(), w.down.requires_grad_()
    for save, per_token in (("all", 2 * H + 6 * I), ("gate_up", 2 * H + 4 * I), ("input", 2 * H)):
        options = MLPOptions(save=save)
        kept = saved_bytes(
            lambda o=options: gated_mlp_fused(x, gate_up, down, layout=layout, options=o),
            (gate_up, down),
        )
        assert kept == 9 * per_token


FAULTS = {
    "odd": (lambda x, gu, d: (x, gu[1:], d, "concat"), "gate_up has the odd width 223"),
    "split": (lambda x, gu, d: (x, gu, d, "split"), "does not describe one fused gate and up"),
    "3-D": (lambda x, gu, d: (x, gu[None], d, "concat"), "gate_up has shape (1, 224, 48)"),
    "down": (lambda x, gu, d: (x, gu, d[:, 1:], "concat"), "down has shape (48, 111)"),
    "x": (lambda x, gu, d: (x[:, 1:], gu, d, "concat"), "x has shape (37, 47)"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_does_not_fit_is_named(name):
    x, w, _ = tensors(0, torch.float32)
    spoil, text = FAULTS[name]
    x, gate_up, down, form = spoil(x, torch.cat((w.gate, w.up)), w.down)
    with pytest.raises(UsageError) as caught:
        gated_mlp_fused(x, gate_up, down, layout=GateUpLayout(form))
    assert text in str(caught.value)
