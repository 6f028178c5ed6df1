"""Mixture of experts as a module: router, stacked experts, and a shared expert beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gateup.errors import UsageError
from gateup.model.spec import GatedMLPSpec, MoESpec
from gateup.nn.gated_mlp import GatedMLP
from gateup.ops.activations import activation
from gateup.ops.arguments import refuse_dtype
from gateup.ops.moe import STACKED, Combine, ExpertWeights, moe, word_of
from gateup.ops.options import MLPOptions, checked
from gateup.ops.routing import Routing, route

_DEFAULT = MLPOptions()


class Placement(NamedTuple):
    """Where parameters are made; as torch's own modules take it."""

    device: torch.device | str | None = None
    dtype: torch.dtype | None = None


class Router(nn.Module):
    """x [T, H] -> logits [T, E], each token's weights [T, k] and experts [T, k].

    Parameters as transformers names them: weight [E, H], bias [E] where there is one, and the
    buffer e_score_correction_bias [E] for sigmoid scores.
    """

    e_score_correction_bias: Tensor | None

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        routing: Routing,
        *,
        bias: bool = False,
        place: Placement = Placement(),  # noqa: B008  (a constant)
    ) -> None:
        super().__init__()
        routing.check(num_experts)
        self.routing = routing
        self.weight = _parameter((num_experts, hidden_size), hidden_size, place)
        self.bias = _parameter((num_experts,), 0, place) if bias else None
        correction = None
        if routing.scores == "sigmoid":
            correction = torch.zeros(num_experts, device=place.device, dtype=torch.float32)
        self.register_buffer("e_score_correction_bias", correction)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = self._logits(x)
        return (logits, *route(logits, self.routing, self.e_score_correction_bias))

    def _logits(self, x: Tensor) -> Tensor:
        if self.routing.float_logits and x.dtype != torch.float64:
            return F.linear(x.to(torch.float32), self.weight.to(torch.float32), self.bias)
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]} experts, {self.routing}"


class Experts(nn.Module):
    """All experts' weights, stacked as transformers stacks them.

    gate_up_proj [E, 2I, H] and down_proj [E, H, I], or with their last two axes exchanged where
    the layout says "in_out"; gate_up_proj_bias [E, 2I] and down_proj_bias [E, H] with biases.
    """

    gate_up_proj_bias: nn.Parameter | None
    down_proj_bias: nn.Parameter | None

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        expert: GatedMLPSpec,
        *,
        options: MLPOptions = _DEFAULT,
        combine: Combine = "slots",
        place: Placement = Placement(),  # noqa: B008
    ) -> None:
        super().__init__()
        E, H, width = num_experts, hidden_size, expert.intermediate_size
        split = expert.layout.form == "split"
        self.layout = STACKED if split else replace(expert.layout, stacked=True)
        self.act, self.options = activation(expert.act).name, checked(options)
        if combine not in get_args(Combine):
            raise UsageError(f"combine is {combine!r}", expected='"slots" or "experts"')
        self.combine = combine
        word_of(self.layout)
        out_in = self.layout.orientation == "out_in"
        gate_up, down = ((2 * width, H), (H, width)) if out_in else ((H, 2 * width), (width, H))
        self.gate_up_proj = _parameter((E, *gate_up), H, place)
        self.down_proj = _parameter((E, *down), width, place)
        self.gate_up_proj_bias = _parameter((E, 2 * width), 0, place) if expert.bias else None
        self.down_proj_bias = _parameter((E, H), 0, place) if expert.bias else None
        options.tile_size(width, self.down_proj.dtype.itemsize)

    def forward(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """x [T, H]; index, weights [T, k] -> [T, H]"""
        experts = ExpertWeights(
            self.gate_up_proj,
            self.down_proj,
            self.gate_up_proj_bias,
            self.down_proj_bias,
            self.layout,
        )
        return moe(
            x, index, weights, experts, act=self.act, options=self.options, combine=self.combine
        )

    def extra_repr(self) -> str:
        return f"{len(self.down_proj)} experts, act={self.act}, options={self.options}"


class MoE(nn.Module):
    """Σ over a token's k experts, plus the shared expert. x [..., H] -> [..., H].

    spec     sizes, activation, layout, biases, shared expert (`gateup.model`); its top_k must be
             the routing's
    routing  which experts, with what weights: `gateup.ops.routing.routing_for(model_type, config)`
    combine  as in `gateup.ops.moe.moe`

    Children: gate, experts, and as the spec says shared_expert and shared_expert_gate. A forward
    hook on `gate` sees (logits, weights, experts), as an auxiliary loss needs them.
    """

    def __init__(
        self,
        hidden_size: int,
        spec: MoESpec,
        routing: Routing,
        *,
        options: MLPOptions = _DEFAULT,
        combine: Combine = "slots",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if spec.top_k != routing.top_k:
            raise UsageError(
                f"the spec's top_k is {spec.top_k}, the routing's {routing.top_k}",
                expected="one number",
            )
        refuse_dtype(dtype)
        place, count = Placement(device, dtype), spec.num_experts
        self.hidden_size = hidden_size
        self.gate = Router(hidden_size, count, routing, bias=spec.router_bias, place=place)
        self.experts = Experts(
            hidden_size, count, spec.expert, options=options, combine=combine, place=place
        )
        self.shared_expert = _shared(hidden_size, spec.shared, options, place)
        self.shared_expert_gate = None
        if spec.shared_gate:
            self.shared_expert_gate = nn.Linear(hidden_size, 1, False, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 0 or x.shape[-1] != self.hidden_size:
            raise UsageError(
                f"x has shape {tuple(x.shape)}", expected=f"[..., H] with H = {self.hidden_size}"
            )
        # Autograd adds up x's gradient from the last use to the first, and sums in bf16 depend on
        # that order: it is transformers' order, the gated shared expert first, a plain one last.
        shared = self._gated_shared(x)
        _, weights, index = self.gate(x.reshape(-1, self.hidden_size))
        rows = x.reshape(-1, self.hidden_size)
        if self.gate.routing.on_input:
            # One expert per token: its weight may as well multiply the token.
            rows, weights = rows * weights.to(rows.dtype), torch.ones_like(weights)
        y: Tensor = self.experts(rows, index, weights).view(x.shape)
        if self.shared_expert_gate is not None and shared is not None:
            return y + torch.sigmoid(self.shared_expert_gate(x)) * shared
        return y if self.shared_expert is None else y + self.shared_expert(x)

    def _gated_shared(self, x: Tensor) -> Tensor | None:
        if self.shared_expert is None or self.shared_expert_gate is None:
            return None
        shared: Tensor = self.shared_expert(x)
        return shared


def _shared(
    hidden_size: int, spec: GatedMLPSpec | None, options: MLPOptions, place: Placement
) -> GatedMLP | None:
    if spec is None:
        return None
    return GatedMLP(
        hidden_size,
        spec.intermediate_size,
        spec.act,
        bias=spec.bias,
        options=options,
        device=place.device,
        dtype=place.dtype,
    )


def _parameter(shape: tuple[int, ...], fan_in: int, place: Placement) -> nn.Parameter:
    """Uniform within ±1/√fan_in, as nn.Linear starts; zeros for a bias (fan_in 0)."""
    tensor = torch.empty(shape, device=place.device, dtype=place.dtype)
    bound = fan_in**-0.5 if fan_in else 0.0
    return nn.Parameter(nn.init.uniform_(tensor, -bound, bound) if bound else tensor.zero_())
