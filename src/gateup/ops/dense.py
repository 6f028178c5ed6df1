"""bf16 products and the gated MLP by the C++ kernels of csrc/, weights read where torch has them.

Sums are float32 from the first product to the one rounding of each result, which is what "wide"
rounding asks for: act(gate) ⊙ up is rounded once, on its way into the down projection, and gate
and up never reach memory unless backward wants them. A row's bits depend neither on the number
of rows nor on the threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gateup.ops import native
from gateup.ops.layouts import halves
from gateup.ops.operands import Kept, Operands
from gateup.ops.rows import Rows, spans

_BF16 = 30  # GGUF's number of the type
_View = tuple[int, int, int]
_NOTHING: _View = (0, 0, 0)
_WEIGHTS = (torch.bfloat16,)


def serves(weight: Tensor) -> bool:
    """Whether products with this weight [N, K] come here.

    Plain C++ does not: without vectors torch's own float32 products of upcast weights are faster.
    """
    if weight.dtype not in _WEIGHTS or weight.device.type != "cpu" or not weight.numel():
        return False
    module, _ = native.load()
    return module is not None and module.isa() != "generic"


def serves_mlp(t: Operands, form: str, act: str) -> bool:
    """The same for the whole gated MLP."""
    return form != "plain" and act in native.ACTS and serves(t.w1)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """out = x weightᵀ + bias. x [T, K], weight [N, K] bf16; out [T, N] with contiguous rows."""
    x, weight, bias = _dense(x), _dense(weight), _float(bias)
    native.extension().dense_linear(
        _matrix(weight),
        0 if bias is None else bias.data_ptr(),
        _view(x),
        x.shape[0],
        _view(out),
        torch.get_num_threads(),
    )


def gated_mlp(
    x: Tensor, t: Operands, form: str, act: str, tile: int, keep_pre: bool, keep_product: bool
) -> tuple[Tensor, Kept]:
    """y [..., H] and what was asked to be kept, in bf16; scratch for `tile` tokens at a time."""
    tokens, width = x.numel() // x.shape[-1], t.width
    gate, up = (t.w1, t.w2) if t.w2 is not None else _rows(t.w1, form)
    b1, b2 = (t.b1, t.b2) if t.w2 is not None or t.b1 is None else halves(t.b1, form)
    weights = [_dense(w) for w in (gate, up, t.down)]
    biases = [_float(b) for b in (b1, b2, t.b_down)]
    addresses = [0 if b is None else b.data_ptr() for b in biases]
    matrices = [_matrix(w) for w in weights]
    y = x.new_empty((tokens, t.down.shape[0]))
    pre = [x.new_empty((tokens, width)) for _ in range(2)] if keep_pre else []
    product = x.new_empty((tokens, width)) if keep_product else None
    kept = (*pre, product) if keep_pre else (None, None, product)
    rows = Rows(x)
    for span in spans(tokens, tile):
        part = _dense(rows[span])
        native.extension().dense_gated_mlp(
            matrices,
            addresses,
            native.ACTS.index(act),
            _view(part),
            part.shape[0],
            [_NOTHING if k is None else _view(k[span]) for k in kept],
            _view(y[span]),
            torch.get_num_threads(),
        )
    y = y.view(*x.shape[:-1], t.down.shape[0])
    if not keep_pre:
        return y, Kept(None, None, product)
    if t.w2 is not None:
        return y, Kept(pre[0], pre[1], product)
    whole = x.new_empty((tokens, 2 * width))
    for half, values in zip(halves(whole, form), pre, strict=True):
        half.copy_(values)
    return y, Kept(whole, None, product)


def _rows(w1: Tensor, form: str) -> tuple[Tensor, Tensor]:
    """Gate's and up's rows [I, H] of a fused w1 [2I, H]: views."""
    gate, up = halves(w1.t(), form)
    return gate.t(), up.t()


def _dense(x: Tensor) -> Tensor:
    """Rows of neighbouring elements that do not overlap."""
    fits = x.stride(1) == 1 and (x.stride(0) >= x.shape[1] or x.shape[0] == 1)
    return x if fits else x.contiguous()


def _float(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.float().contiguous()


def _matrix(w: Tensor) -> tuple[int, int, int, int, int]:
    return _BF16, w.shape[0], w.shape[1], w.data_ptr(), max(w.stride(0), w.shape[1])


def _view(rows: Tensor) -> _View:
    return rows.data_ptr(), rows.stride(0), native.DTYPES[rows.dtype]
