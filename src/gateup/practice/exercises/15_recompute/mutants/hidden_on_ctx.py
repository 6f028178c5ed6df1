import torch


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_gate, w_up, w_down):
        ctx.gate, ctx.up = x @ w_gate.T, x @ w_up.T
        ctx.act = torch.nn.functional.silu(ctx.gate)
        ctx.product = ctx.act * ctx.up
        ctx.save_for_backward(x, w_gate, w_up, w_down)
        return ctx.product @ w_down.T

    @staticmethod
    def backward(ctx, dy):
        x, w_gate, w_up, w_down = ctx.saved_tensors
        s = torch.sigmoid(ctx.gate)
        dp = dy @ w_down
        du, dg = dp * ctx.act, dp * ctx.up * s * (1 + ctx.gate * (1 - s))
        return dg @ w_gate + du @ w_up, dg.T @ x, du.T @ x, dy.T @ ctx.product


def swiglu(x, w_gate, w_up, w_down):
    return SwiGLU.apply(x, w_gate, w_up, w_down)
