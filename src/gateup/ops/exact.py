"""Untiled, every intermediate rounded: the operations of transformers' eager MLP, in its order.

Forward and backward call what `down(act(gate(x)) * up(x))` and autograd would call, on the same
shapes and strides, so results have the same bits. Buffers are reused where autograd would
allocate anew: on CPU, fresh pages cost about as much as the elementwise work itself.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gateup.ops.activations import Act, activation
from gateup.ops.operands import Gradients, Kept, Needs, Operands, gate_and_up
from gateup.ops.rows import flat


def forward(
    x: Tensor, t: Operands, form: str, act: str, keep_pre: bool, keep_product: bool
) -> tuple[Tensor, Kept]:
    """y [..., H] and what was asked to be kept."""
    chosen = activation(act)
    pre1, pre2 = _project(x, t, form)
    product = _product(chosen, form, pre1, pre2, reuse=not keep_pre)
    kept = Kept(
        flat(pre1) if keep_pre else None,
        flat(pre2) if keep_pre and pre2 is not None else None,
        flat(product) if keep_product else None,
    )
    del pre1, pre2
    return F.linear(product, t.down, t.b_down), kept


def backward(
    dy: Tensor, x: Tensor | None, t: Operands, kept: Kept, form: str, act: str, needs: Needs
) -> tuple[Gradients, Tensor | None]:
    """Gradients in the operands' dtype. x's comes as w1's part and w2's part, not yet added.

    The second value is w2's part (None without one): autograd adds the two in x's dtype, which
    under autocast is wider than the operands'.
    """
    chosen, dy2 = activation(act), flat(dy)
    pre1, pre2, product = kept
    owned = pre1 is None
    if pre1 is None and (needs.pre or (needs.down and product is None)):
        assert x is not None, "x is kept wherever pre-activations are not"
        pre1, pre2 = _project(x, t, form)
        pre1, pre2 = flat(pre1), None if pre2 is None else flat(pre2)
    if needs.down and product is None:
        assert pre1 is not None
        product = _product(chosen, form, pre1, pre2, reuse=False)
    grads = Gradients(
        down=_weight_gradient(dy2, product, t.down) if needs.down and product is not None else None,
        b_down=_bias_gradient(dy) if needs.b_down else None,
    )
    if not needs.pre:
        return grads, None
    assert pre1 is not None
    # The product's buffer becomes its gradient's, unless a second backward will need it.
    reuse = product if kept.product is None else None
    del product
    d_product = torch.mm(dy2, t.down, out=reuse) if reuse is not None else dy2.mm(t.down)
    del reuse
    d1, d2 = _pre_gradients(chosen, form, d_product, pre1, pre2, owned)
    del d_product, pre1, pre2, kept
    return _input_side(grads, x, t, d1, d2, dy.shape[:-1], needs)


def _project(x: Tensor, t: Operands, form: str) -> tuple[Tensor, Tensor | None]:
    pre1 = F.linear(x, t.w1, t.b1)
    return pre1, None if t.w2 is None else F.linear(x, t.w2, t.b2)


def _product(act: Act, form: str, pre1: Tensor, pre2: Tensor | None, *, reuse: bool) -> Tensor:
    """act(gate) ⊙ up, or act(pre1) of the classic FFN; over pre1's memory when `reuse`."""
    if form == "plain":
        return act.value(pre1, pre1) if reuse else _fresh(act, pre1)
    gate, up = gate_and_up(form, pre1, pre2)
    if reuse and pre2 is not None:
        return act.value(gate, gate).mul_(act.factor(up))
    return _fresh(act, gate).mul_(act.factor(up))


def _fresh(act: Act, gate: Tensor) -> Tensor:
    value = act.value(gate)
    return value.clone() if value is gate else value.contiguous()


def _pre_gradients(
    act: Act, form: str, d_product: Tensor, pre1: Tensor, pre2: Tensor | None, owned: bool
) -> tuple[Tensor, Tensor | None]:
    """d_pre1, d_pre2; `d_product` is used up, and so are `pre1` and `pre2` when `owned`."""
    if form == "plain":
        return act.gradient(d_product, pre1, d_product), None
    gate, up = gate_and_up(form, pre1, pre2)
    if pre2 is not None:
        d_up = act.up_gradient(_fresh(act, gate).mul_(d_product), up)
        d_value = d_product.mul_(act.factor(up))
        return act.gradient(d_value, gate, d_value), d_up
    fused = pre1 if owned else torch.empty_like(pre1)
    d_gate, d_up = gate_and_up(form, fused, None)
    d_factor = act.up_gradient(_fresh(act, gate).mul_(d_product), up)
    d_value = d_product.mul_(act.factor(up))
    d_up.copy_(d_factor)
    del d_factor
    d_gate.copy_(act.gradient(d_value, gate, d_value))
    return fused, None


def _input_side(
    grads: Gradients,
    x: Tensor | None,
    t: Operands,
    d1: Tensor,
    d2: Tensor | None,
    lead: torch.Size,
    needs: Needs,
) -> tuple[Gradients, Tensor | None]:
    x2 = None if x is None else flat(x)
    parts: list[Tensor | None] = [None, None]
    if needs.x:
        parts[0] = _input_gradient(d1, t.w1, x2).view(*lead, t.w1.shape[1])
        if d2 is not None and t.w2 is not None:
            parts[1] = _input_gradient(d2, t.w2, x2).view(*lead, t.w2.shape[1])
    grads = grads._replace(
        x=parts[0],
        w1=_weight_gradient(d1, x2, t.w1) if needs.w1 and x2 is not None else None,
        b1=_bias_gradient(d1) if needs.b1 else None,
    )
    if d2 is not None and t.w2 is not None:
        grads = grads._replace(
            w2=_weight_gradient(d2, x2, t.w2) if needs.w2 and x2 is not None else None,
            b2=_bias_gradient(d2) if needs.b2 else None,
        )
    return grads, parts[1]


def _columns_first(matrix: Tensor) -> bool:
    return matrix.stride(0) == 1 and matrix.stride(1) == matrix.shape[0]


def _input_gradient(grad: Tensor, weight: Tensor, x: Tensor | None) -> Tensor:
    """grad @ weight, [T, H]; in the order autograd picks by the strides of `x` [T, H]."""
    if x is not None and _columns_first(x):
        return weight.t().mm(grad.t()).t().contiguous()
    return grad.mm(weight)


def _weight_gradient(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """gradᵀ @ x, [out, in]; in the order autograd picks by the strides of `weight`."""
    if _columns_first(weight.t()):
        return grad.t().mm(x)
    return x.t().mm(grad).t().contiguous()


def _bias_gradient(grad: Tensor) -> Tensor:
    return flat(grad).sum(0)
