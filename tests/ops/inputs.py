"""Inputs of the ops' tests, and what they are compared through."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gateup.ops import reference
from gateup.ops.gated_mlp import Weights
from gateup.ops.tally import SavedBytes

H, I = 48, 112
NAMES = ("gate", "up", "down", "gate_bias", "up_bias", "down_bias")


def tensors(
    seed: int, dtype: torch.dtype, shape: Sequence[int] = (37, H), bias: bool = True, width: int = I
) -> tuple[Tensor, Weights, Tensor]:
    """x, weights and y's gradient; of a trained model's scale, so that activations matter."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(size, generator=generator) * scale).to(dtype)

    hidden = shape[-1]
    matrices = (
        draw(width, hidden, scale=hidden**-0.5),
        draw(width, hidden, scale=hidden**-0.5),
        draw(hidden, width, scale=width**-0.5),
    )
    biases = (draw(width), draw(width), draw(hidden)) if bias else (None, None, None)
    return draw(*shape), Weights(*matrices, *biases), draw(*shape)


def leaves(x: Tensor, weights: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [None if t is None else t.detach().clone().requires_grad_() for t in (x, *weights)]


def gradients(
    function: Callable[..., Tensor],
    x: Tensor,
    weights: Sequence[Tensor | None],
    dy: Tensor,
    names: Sequence[str] = NAMES,
) -> dict[str, Tensor]:
    """y and the gradients of function(x, *weights), by name."""
    inputs = leaves(x, weights)
    y = function(*inputs)
    y.backward(dy)
    results = {"y": y.detach()}
    for name, tensor in zip(("x", *names), inputs, strict=True):
        if tensor is not None:
            assert tensor.grad is not None, f"{name} has no gradient"
            results[f"d_{name}"] = tensor.grad
    return results


def plain(x, gate, up, down, gate_bias=None, up_bias=None, down_bias=None, act="silu"):
    return reference.gated_mlp(
        x, gate, up, down, gate_bias=gate_bias, up_bias=up_bias, down_bias=down_bias, act=act
    )


def exact(
    function: Callable[..., Tensor],
    x: Tensor,
    weights: Sequence[Tensor | None],
    dy: Tensor,
    names: Sequence[str] = NAMES,
) -> dict[str, Tensor]:
    """The same in float64 on upcast inputs."""
    up = [None if w is None else w.double() for w in weights]
    return gradients(function, x.double(), up, dy.double(), names)


def saved_bytes(run: Callable[[], Tensor], parameters: Sequence[Tensor | None]) -> int:
    """Bytes of the distinct storages autograd keeps, the parameters' not counted."""
    with SavedBytes(skip=[p for p in parameters if p is not None]) as saved:
        y = run()
    assert y.requires_grad
    return saved.nbytes
