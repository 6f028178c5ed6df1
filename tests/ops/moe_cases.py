"""Experts, routed tokens and how they are run, for the tests of the expert op."""

from __future__ import annotations

import itertools

import torch

from gateup.model.layout import GateUpLayout
from gateup.ops.moe import STACKED, ExpertWeights, moe
from gateup.ops.options import MLPOptions

T, E, K, H, WIDTH = 37, 6, 2, 48, 40
GPT_OSS = GateUpLayout("interleaved", orientation="in_out", stacked=True)
LAYOUTS = {
    "gate first": STACKED,
    "up first": GateUpLayout("concat", "up_gate", stacked=True),
    "interleaved": GateUpLayout("interleaved", stacked=True),
    "gpt-oss": GPT_OSS,
}
SAVES = ("all", "gate_up", "input")


def inputs(seed=0, dtype=torch.float64, layout=STACKED, *, bias=False, tokens=T, k=K, weights=None):
    """[x, weights, gate_up, down (, biases)], index, y's gradient. Expert 2 gets no token."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape, scale=1.0):
        return (torch.randn(*shape, generator=g) * scale).to(dtype)

    logits = torch.randn(tokens, E, generator=g)
    if k < E:
        logits[:, 2] = -100
    chosen, index = torch.topk(torch.softmax(logits, -1), k)
    out_in = layout.orientation == "out_in"
    gate_up, down = ((2 * WIDTH, H), (H, WIDTH)) if out_in else ((H, 2 * WIDTH), (WIDTH, H))
    tensors = [draw(tokens, H), chosen.to(weights or dtype)]
    tensors += [draw(E, *gate_up, scale=H**-0.5), draw(E, *down, scale=WIDTH**-0.5)]
    if bias:
        tensors += [draw(E, 2 * WIDTH), draw(E, H)]
    return tensors, index, draw(tokens, H)


def run(tensors, index, grad, layout=STACKED, call=moe, **kwargs):
    """y and the gradients of all tensors, by name."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    biases = leaves[4:] or (None, None)
    y = call(leaves[0], index, leaves[1], ExpertWeights(*leaves[2:4], *biases, layout), **kwargs)
    grads = torch.autograd.grad(y, leaves, grad)
    names = ("x", "weights", "gate_up", "down", "gate_up_bias", "down_bias")
    return {"y": y.detach(), **dict(zip(names, grads, strict=False))}


COMBINATIONS = [
    (rounding, save, tile, combine)
    for rounding, save, tile in itertools.product(("hf", "wide"), SAVES, (None, 5))
    for combine in ("slots", "experts")
    if rounding == "hf" or combine == "slots"
]


def settings(rounding, save, tile, combine):
    return {"options": MLPOptions(rounding, save, tile), "combine": combine}
