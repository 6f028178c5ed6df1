"""act(x W1 + b1) W2 + b2, the feed-forward network before gates (GPT-2, BERT)."""

from __future__ import annotations

from torch import Tensor

from gateup.errors import UsageError
from gateup.ops.activations import activation
from gateup.ops.arguments import are_tensors, check
from gateup.ops.mlp import mlp
from gateup.ops.mlp_ops import autocasts
from gateup.ops.operands import Operands
from gateup.ops.options import MLPOptions

_DEFAULT = MLPOptions()


def classic_ffn(
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    b1: Tensor | None = None,
    b2: Tensor | None = None,
    *,
    act: str = "gelu",
    options: MLPOptions = _DEFAULT,
) -> Tensor:
    """x [..., H] -> y [..., H]. w1 [I, H]; w2 [H, I]; b1 [I]; b2 [H].

    `options` as in `gated_mlp`; save="gate_up" keeps x and w1's output (H+I). Raises UsageError
    as `gated_mlp`, and for gpt-oss's activation, which is of a gated MLP only.
    """
    if activation(act).clamped:
        raise UsageError(f"activation {act!r} needs a gate and an up projection")
    are_tensors(x=x, w1=w1, w2=w2)
    width, hidden = tuple(w1.shape) if w1.dim() == 2 else (0, 0)
    out = w2.shape[0] if w2.dim() else 0
    check(
        x,
        ("w1", w1, (width, hidden), "I, H"),
        ("w2", w2, (out, width), "H, I"),
        ("b1", b1, (width,), "I"),
        ("b2", b2, (out,), "H"),
        mixed=autocasts(x.device.type),
    )
    return mlp(x, Operands(w1, None, w2, b1, None, b2), "plain", act, options)
