import torch


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_gate, w_up, w_down):
        gate, up = x @ w_gate.T, x @ w_up.T
        ctx.save_for_backward(x, gate, up, w_gate, w_up, w_down)
        return (torch.nn.functional.silu(gate) * up) @ w_down.T

    @staticmethod
    def backward(ctx, dy):
        x, gate, up, w_gate, w_up, w_down = ctx.saved_tensors
        act = torch.nn.functional.silu(gate)
        dp = dy @ w_down
        du, dg = dp * act, dp * up
        return dg @ w_gate + du @ w_up, dg.T @ x, du.T @ x, dy.T @ (act * up)


def swiglu(x, w_gate, w_up, w_down):
    return SwiGLU.apply(x, w_gate, w_up, w_down)
