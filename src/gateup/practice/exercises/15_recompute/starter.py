import torch


def swiglu(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor
) -> torch.Tensor:
    """SwiGLU of x [T, H] that keeps H + 2·I numbers per token for its backward pass."""
    ...
