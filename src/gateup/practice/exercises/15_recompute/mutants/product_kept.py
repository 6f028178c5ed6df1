import torch


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_gate, w_up, w_down):
        gate, up = x @ w_gate.T, x @ w_up.T
        product = torch.nn.functional.silu(gate) * up
        ctx.save_for_backward(x, gate, up, product, w_gate, w_up, w_down)
        return product @ w_down.T

    @staticmethod
    def backward(ctx, dy):
        x, gate, up, product, w_gate, w_up, w_down = ctx.saved_tensors
        s = torch.sigmoid(gate)
        dp = dy @ w_down
        du, dg = dp * gate * s, dp * up * s * (1 + gate * (1 - s))
        return dg @ w_gate + du @ w_up, dg.T @ x, du.T @ x, dy.T @ product


def swiglu(x, w_gate, w_up, w_down):
    return SwiGLU.apply(x, w_gate, w_up, w_down)
