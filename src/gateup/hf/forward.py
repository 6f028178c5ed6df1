"""What stands in for a module's forward: gateup's ops on the module's own parameters.

An instance lies in the module's `__dict__` under "forward", where `nn.Module.__call__` finds it
before the class's own. It is an object and not a closure, so that a copied or unpickled model
carries forwards bound to its own modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from gateup.hf.experts import eager_loop
from gateup.hf.table import Kind, Row
from gateup.nn.projections import in_blocks, is_bare, parameters_of
from gateup.ops.gated_mlp import Weights, gated_mlp, gated_mlp_fused
from gateup.ops.mlp_ops import autocasts
from gateup.ops.modular import gated_mlp_fused_modules, gated_mlp_modules
from gateup.ops.moe import Combine, ExpertWeights, moe
from gateup.ops.options import MLPOptions

# Where a module's own forward may lie: accelerate's hooks move it to the second and call it there.
SLOTS = ("forward", "_old_forward")


class Forward:
    """A forward of `module`, whose class is `row`'s, with the activation `act`."""

    def __init__(self, module: nn.Module, row: Row, act: str, options: MLPOptions) -> None:
        self.module, self.row, self.act, self.options = module, row, act, options
        self.function = self._function()

    def _function(self) -> Any:
        """What the module has for its activation; gpt-oss has two numbers."""
        m: Any = self.module
        return (m.limit, m.alpha) if self.row.act is None else getattr(m, self.row.act)

    @property
    def changed(self) -> bool:
        """Whether the module's activation is another than at patching, or has hooks: then the
        class's own forward runs, which calls it."""
        now = self._function()
        if isinstance(now, nn.Module):
            return now is not self.function or not is_bare(now)
        return bool(now != self.function)

    def stock(self, *arguments: Tensor) -> Tensor:
        """What the class itself computes."""
        y: Tensor = type(self.module).forward(self.module, *arguments)
        return y

    @property
    def __code__(self) -> Any:
        """torch.export names the place of the forward it was given by it."""
        return type(self).__call__.__code__

    @property
    def exact(self) -> bool:
        """Whether the options ask for transformers' bits in every case."""
        return self.options == MLPOptions()


class SplitForward(Forward):
    """gate_proj, up_proj and down_proj as three linear modules."""

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., H] -> [..., H]. How the projections run is decided at each call, because
        adapters and hooks come and go."""
        m: Any = self.module
        if self.changed:
            return self.stock(x)
        plain = parameters_of(m.gate_proj, m.up_proj, m.down_proj)
        if plain is None:
            y = in_blocks(x, m.gate_proj, m.up_proj, m.down_proj, self.act, self.options)
            if y is not None:
                return y
            return gated_mlp_modules(
                x, m.gate_proj, m.up_proj, m.down_proj, act=self.act, options=self.options
            )
        (gate, gate_bias), (up, up_bias), (down, down_bias) = plain
        weights = Weights(gate, up, down, gate_bias, up_bias, down_bias)
        return gated_mlp(x, weights, act=self.act, options=self.options)


class FusedForward(Forward):
    """gate_up_proj and down_proj as two linear modules."""

    def __call__(self, hidden_states: Tensor) -> Tensor:
        """hidden_states [..., H] -> [..., H]; as in SplitForward."""
        m: Any = self.module
        if self.changed:
            return self.stock(hidden_states)
        plain = parameters_of(m.gate_up_proj, m.down_proj)
        if plain is None:
            return gated_mlp_fused_modules(
                hidden_states,
                m.gate_up_proj,
                m.down_proj,
                layout=self.row.layout,
                act=self.act,
                options=self.options,
            )
        (gate_up, gate_up_bias), (down, down_bias) = plain
        return gated_mlp_fused(
            hidden_states,
            gate_up,
            down,
            layout=self.row.layout,
            gate_up_bias=gate_up_bias,
            down_bias=down_bias,
            act=self.act,
            options=self.options,
        )


class ExpertsForward(Forward):
    """gate_up_proj [E, ...] and down_proj [E, ...] as stacked parameters, on routed tokens."""

    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """hidden_states [T, H]; top_k_index, top_k_weights [T, k] -> [T, H].

        The implementation is read at each call: `model.set_experts_implementation` changes it.
        """
        m: Any = self.module
        implementation = m.config._experts_implementation or "eager"
        arguments = hidden_states, top_k_index, top_k_weights
        served = implementation in COMBINE or not self.exact
        if self.changed or m._is_expert_parallel or not served:
            return self.stock(*arguments)
        if self.exact and implementation == "eager":
            return eager_loop(m, m._apply_gate, *arguments)
        experts = ExpertWeights(
            m.gate_up_proj,
            m.down_proj,
            getattr(m, "gate_up_proj_bias", None),
            getattr(m, "down_proj_bias", None),
            self.row.layout,
        )
        combine, options = COMBINE.get(implementation, "slots"), self.options
        with _no_autocast(hidden_states.device.type):
            x = hidden_states.to(experts.gate_up.dtype)
            weights = top_k_weights.to(torch.promote_types(top_k_weights.dtype, x.dtype))
            y = moe(
                x, top_k_index, weights, experts, act=self.act, options=options, combine=combine
            )
        return y.to(hidden_states.dtype)


# In whose steps gateup's experts go, by transformers' experts implementation.
COMBINE: Mapping[str, Combine] = {"eager": "experts", "grouped_mm": "slots"}


def _no_autocast(device: str) -> AbstractContextManager[Any]:
    """Experts compute in their weights' dtype, as torch's grouped_mm does under autocast.

    In autocast's dtype the sums over experts would be less exact than transformers' eager loop,
    which casts each expert's rows on their own.
    """
    return torch.autocast(device, enabled=False) if autocasts(device) else nullcontext()


FORWARDS: Mapping[Kind, type[Forward]] = {
    "split": SplitForward,
    "fused": FusedForward,
    "experts": ExpertsForward,
}
