"""The feed-forward sublayer: x + MLP(RMSNorm(x)), with what families add to it."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from gateup.errors import UsageError
from gateup.ops.arguments import positive

Style = Literal["llama", "gemma", "float32"]


class RMSNorm(nn.Module):
    """x / √(mean(x²) + eps), times a weight, with the steps and the bits of transformers.

    style  when the weight [H] comes: "llama": after rounding back to x's dtype; "float32": before
           it (gpt-oss, OLMo 2); "gemma": before it, as 1 + weight
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        *,
        style: Style = "llama",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if style not in get_args(Style):
            raise UsageError(f"style is {style!r}", expected="one of " + ", ".join(get_args(Style)))
        positive("hidden_size", hidden_size)
        start = torch.zeros if style == "gemma" else torch.ones
        self.weight = nn.Parameter(start(hidden_size, device=device, dtype=dtype))
        self.eps, self.style = eps, style

    def forward(self, x: Tensor) -> Tensor:
        """x [..., H] -> [..., H], normalised in float32 (float64 stays float64)."""
        if x.shape[-1] != self.weight.shape[0]:
            raise UsageError(
                f"x has shape {tuple(x.shape)}", expected=f"[..., H] with H = {len(self.weight)}"
            )
        wide = x if x.dtype == torch.float64 else x.to(torch.float32)
        normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.style == "llama":
            return self.weight * normal.to(x.dtype)
        weight = self.weight.to(wide.dtype) if self.style == "gemma" else self.weight
        if self.style == "gemma":
            return (normal * (1.0 + weight)).type_as(x)
        return (weight * normal).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}, style={self.style}"


class FeedForward(nn.Module):
    """x + residual_multiplier · post_norm(mlp(norm(x))).

    norm       before the MLP; None in families that normalise only after it (OLMo 2)
    post_norm  after the MLP (Gemma 2 and 3, OLMo 2)
    residual_multiplier  Granite's scale of the branch; 1: none
    """

    def __init__(
        self,
        mlp: nn.Module,
        norm: nn.Module | None,
        *,
        post_norm: nn.Module | None = None,
        residual_multiplier: float = 1.0,
    ) -> None:
        super().__init__()
        for name, part in (("mlp", mlp), ("norm", norm), ("post_norm", post_norm)):
            if not isinstance(part, nn.Module) and (part is not None or name == "mlp"):
                raise UsageError(f"{name} is {part!r}", expected="a torch.nn.Module")
        self.norm, self.mlp, self.post_norm = norm, mlp, post_norm
        self.residual_multiplier = residual_multiplier

    def forward(self, x: Tensor) -> Tensor:
        """x [..., H] -> [..., H]"""
        branch: Tensor = self.mlp(x if self.norm is None else self.norm(x))
        if self.post_norm is not None:
            branch = self.post_norm(branch)
        if self.residual_multiplier != 1.0:
            branch = branch * self.residual_multiplier
        return x + branch

    def extra_repr(self) -> str:
        multiplier = self.residual_multiplier
        return "" if multiplier == 1.0 else f"residual_multiplier={multiplier}"
