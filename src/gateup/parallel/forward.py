"""What stands in for a module's forward once its parameters are DTensors: the ops on this rank's
part of the width, between the two collectives.

An instance lies in the module's `__dict__` under "forward", as `gateup.hf.forward`'s do.

rounding "hf" promises the bits of one process, which a sum over ranks cannot have, and it leaves
no room for the rounding of each rank's part: that part alone would make y err 1.1 times as much as
one process's. So 16-bit parts are computed "wide" in every case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from gateup.errors import UsageError
from gateup.model.layout import GateUpLayout
from gateup.nn.projections import why_called
from gateup.ops.gated_mlp import Weights, gated_mlp, gated_mlp_fused
from gateup.ops.layouts import CONCAT
from gateup.ops.moe import Combine, ExpertWeights, moe
from gateup.ops.options import MLPOptions
from gateup.parallel.collectives import Region, gathered
from gateup.parallel.shards import Piece, expert_pieces, fused_pieces, split_pieces


class Sharded:
    """A forward of `module` over the ranks of `region`.

    options      None: the module's own, asked for at each call
    pieces       its parameters
    projections  the linear modules among its children, by name
    width        I of the whole MLP
    """

    pieces: tuple[Piece, ...]
    projections: Mapping[str, nn.Module]
    width: int

    def __init__(
        self, module: nn.Module, region: Region, act: str, options: MLPOptions | None
    ) -> None:
        self.module, self.region, self.act = module, region, act
        self._options = options

    @property
    def options(self) -> MLPOptions:
        module: Any = self.module
        own: MLPOptions = module.options if self._options is None else self._options
        return replace(own, rounding="wide")

    def spread(self) -> None:
        """Make the parameters DTensors."""
        for piece in self.pieces:
            piece.spread(self.region.mesh)

    def _locals(self) -> list[Tensor | None]:
        for name, linear in self.projections.items():
            _refuse_changed(name, linear, getattr(self.module, name))
        return [piece.local() for piece in self.pieces]

    def _out(self, partial: Tensor, bias: Tensor | None) -> Tensor:
        """Σ of the ranks' parts [n, H], and the bias once; rounded once."""
        if bias is None:
            return self.region.leave(partial)
        total = self.region.leave(partial, wide=True)
        return (total + bias).to(partial.dtype)


class SplitSharded(Sharded):
    """gate_proj, up_proj and down_proj: rows of gate and of up, columns of down."""

    def __init__(
        self, module: Any, region: Region, act: str, options: MLPOptions | None = None
    ) -> None:
        super().__init__(module, region, act, options)
        gate, up, down = module.gate_proj, module.up_proj, module.down_proj
        self.projections = {"gate_proj": gate, "up_proj": up, "down_proj": down}
        self.pieces = split_pieces(gate, up, down)
        self.width = len(gate.weight)
        self.pair: tuple[DTensor, DTensor | None] | None = None

    def spread(self) -> None:
        """A merged module's gate and up stay one matrix: [2, I, H], cut along I."""
        module: Any = self.module
        merged = getattr(module, "merged", False)
        if merged:
            module.unmerge()
        super().spread()
        if merged:
            self._merge(module.gate_proj, module.up_proj)

    def _merge(self, gate: Any, up: Any) -> None:
        mesh = self.region.mesh
        made: list[DTensor | None] = []
        for kind in ("weight", "bias"):
            parts = [getattr(linear, kind) for linear in (gate, up)]
            if parts[0] is None:
                made.append(None)
                continue
            local = torch.stack([part.detach().to_local() for part in parts])
            made.append(DTensor.from_local(local, mesh, [Shard(1)], run_check=False))
            for linear, view in zip((gate, up), local.unbind(0), strict=True):
                cut = DTensor.from_local(view, mesh, [Shard(0)], run_check=False)
                setattr(linear, kind, nn.Parameter(cut, requires_grad=False))
        weight, bias = made
        assert weight is not None
        self.pair = weight, bias

    @property
    def merged(self) -> DTensor | None:
        """gate and up as one DTensor [2, I, H]; None where they are apart or need gradients."""
        if self.pair is None:
            return None
        weight, _ = self.pair
        both, gate, up = weight.to_local(), *(self._data(p) for p in self.pieces[0:4:2])
        held = gate.data_ptr() == both[0].data_ptr() and up.data_ptr() == both[1].data_ptr()
        needed = torch.is_grad_enabled() and any(
            p.parameter is not None and p.parameter.requires_grad for p in self.pieces[:4]
        )
        return weight if held and not needed else None

    @staticmethod
    def _data(piece: Piece) -> Tensor:
        parameter = piece.parameter
        assert isinstance(parameter, DTensor)
        return parameter.detach().to_local()

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., H] -> [..., H]"""
        gate, gate_bias, up, up_bias, down, bias = self._locals()
        assert gate is not None
        assert up is not None
        assert down is not None
        rows, how = self.region.enter(_rows(x, gate)), self.options
        if self.merged is not None and self.pair is not None:
            weight, both = (None if t is None else t.to_local().flatten(0, 1) for t in self.pair)
            assert weight is not None
            partial = gated_mlp_fused(
                rows, weight, down, layout=CONCAT, gate_up_bias=both, act=self.act, options=how
            )
        else:
            weights = Weights(gate, up, down, gate_bias, up_bias)
            partial = gated_mlp(rows, weights, act=self.act, options=how)
        bias = None if bias is None else self.region.shared(bias)
        return self._out(partial, bias).view(*x.shape[:-1], down.shape[0])


class FusedSharded(Sharded):
    """gate_up_proj and down_proj: matching rows of gate and of up, columns of down."""

    def __init__(
        self,
        module: Any,
        region: Region,
        act: str,
        options: MLPOptions | None,
        layout: GateUpLayout,
    ) -> None:
        super().__init__(module, region, act, options)
        self.layout = layout
        gate_up, down = module.gate_up_proj, module.down_proj
        self.projections = {"gate_up_proj": gate_up, "down_proj": down}
        self.pieces = fused_pieces(gate_up, down, layout)
        self.width = len(gate_up.weight) // 2

    def __call__(self, hidden_states: Tensor) -> Tensor:
        """hidden_states [..., H] -> [..., H]"""
        gate_up, gate_up_bias, down, bias = self._locals()
        assert gate_up is not None
        assert down is not None
        partial = gated_mlp_fused(
            self.region.enter(_rows(hidden_states, gate_up)),
            gate_up,
            down,
            layout=self.layout,
            gate_up_bias=gate_up_bias,
            act=self.act,
            options=self.options,
        )
        bias = None if bias is None else self.region.shared(bias)
        return self._out(partial, bias).view(*hidden_states.shape[:-1], down.shape[0])


class ExpertsSharded(Sharded):
    """Stacked experts, each cut along its width: every rank has a part of all experts."""

    def __init__(
        self,
        module: Any,
        region: Region,
        act: str,
        options: MLPOptions | None,
        layout: GateUpLayout,
    ) -> None:
        super().__init__(module, region, act, options)
        self.layout = layout
        self.projections, self.pieces = {}, expert_pieces(module, layout)
        self.width = module.down_proj.shape[2 if layout.orientation == "out_in" else 1]

    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """hidden_states [T, H]; top_k_index, top_k_weights [T, k] -> [T, H]"""
        gate_up, down, gate_up_bias, bias = self._locals()
        assert gate_up is not None
        assert down is not None
        region = self.region
        index = gathered(top_k_index, region.mesh) if region.sequence else top_k_index
        # The router is the same on every rank, its weights' gradient in parts, as x's is.
        partial = moe(
            region.enter(hidden_states),
            index,
            region.enter(top_k_weights),
            ExpertWeights(gate_up, down, gate_up_bias, None, self.layout),
            act=self.act,
            options=self.options,
            combine=self._combine(),
        )
        if bias is not None:
            bias = _routed(top_k_index, top_k_weights, region.shared(bias))
        return self._out(partial, bias)

    def _combine(self) -> Combine:
        combine: Combine = getattr(self.module, "combine", "slots")
        return combine


def _routed(index: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    """Σ over a token's k experts of weight · bias, in bias's dtype. bias [E, H] -> [T, H]"""
    shares = weights.new_zeros((index.shape[0], bias.shape[0]), dtype=bias.dtype)
    return shares.scatter_add(1, index, weights.to(bias.dtype)) @ bias


def _rows(x: Tensor, weight: Tensor) -> Tensor:
    if x.dim() == 0 or x.shape[-1] != weight.shape[-1]:
        raise UsageError(
            f"x has shape {tuple(x.shape)}", expected=f"[..., H] with H = {weight.shape[-1]}"
        )
    return x.reshape(-1, x.shape[-1])


def _refuse_changed(name: str, linear: nn.Module, now: nn.Module) -> None:
    """UsageError where calling the projection would do more than its parameters say."""
    weight: Any = linear.weight
    reason = why_called(now)
    if reason is None and not isinstance(weight, DTensor):
        reason = f"its weight is a {type(weight).__name__}, no longer a DTensor"
    if reason is not None or now is not linear:
        raise UsageError(
            f"{name} of a tensor-parallel MLP was changed: {reason or 'it is another module'}",
            expected="the nn.Linear that tensor_parallel spread over the ranks",
            remedy="merge adapters into the base weights before (PEFT: merge_and_unload)",
        )
