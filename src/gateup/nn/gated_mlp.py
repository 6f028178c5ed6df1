"""The gated MLP as a module with the standard children: gate_proj, up_proj, down_proj."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gateup.errors import UsageError
from gateup.nn import names
from gateup.nn.linear import QuantLinear
from gateup.nn.merging import Fused, Merge, When, faster, fuse, refuse_if_held
from gateup.nn.projections import in_blocks, parameters_of
from gateup.ops.activations import activation
from gateup.ops.arguments import positive, refuse_dtype
from gateup.ops.gated_mlp import Weights, gated_mlp, gated_mlp_fused
from gateup.ops.layouts import CONCAT
from gateup.ops.modular import gated_mlp_modules
from gateup.ops.options import MLPOptions, checked
from gateup.ops.packed import PackedWeight

_DEFAULT = MLPOptions()
_WIDE = MLPOptions(rounding="wide")


class GatedMLP(nn.Module):
    """down_proj(act(gate_proj(x)) ⊙ up_proj(x)). x [..., H] -> [..., H].

    The projections are plain nn.Linear, under the names that PEFT, FSDP and optimizers know.
    While they stay plain, one op computes all; a projection that was replaced, sharded, hooked or
    adapted is called as the module it is, with the same saving and tiling.

    Raises UsageError for an unknown activation, a size below 1, a dtype that it cannot compute in,
    and a budget that holds not even one token.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        act: str = "silu",
        *,
        bias: bool = False,
        options: MLPOptions = _DEFAULT,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("hidden_size", hidden_size), ("intermediate_size", intermediate_size)):
            positive(name, size)
        refuse_dtype(dtype)
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        self.act, self.options = activation(act).name, checked(options)
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias, device, dtype)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias, device, dtype)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias, device, dtype)
        options.tile_size(intermediate_size, self.gate_proj.weight.dtype.itemsize)
        self._fused: Fused | None = None

    def forward(self, x: Tensor) -> Tensor:
        """x [..., H] -> [..., H]. What the projections are is asked at each call."""
        plain = parameters_of(self.gate_proj, self.up_proj, self.down_proj)
        if plain is None:
            y = in_blocks(x, self.gate_proj, self.up_proj, self.down_proj, self.act, self.options)
            if y is not None:
                return y
            return gated_mlp_modules(
                x,
                self.gate_proj,
                self.up_proj,
                self.down_proj,
                act=self.act,
                options=self.options,
            )
        (gate, gate_bias), (up, up_bias), (down, down_bias) = plain
        fused = self._fused
        if fused is not None and fused.serves(gate, up):
            return gated_mlp_fused(
                x,
                fused.weight,
                down,
                layout=CONCAT,
                gate_up_bias=fused.bias,
                down_bias=down_bias,
                act=self.act,
                options=self.options,
            )
        weights = Weights(gate, up, down, gate_bias, up_bias, down_bias)
        return gated_mlp(x, weights, act=self.act, options=self.options)

    def extra_repr(self) -> str:
        return f"act={self.act}, options={self.options}, merged={self.merged}"

    # ---- merging -------------------------------------------------------------------------------

    @property
    def merged(self) -> bool:
        return self._fused is not None

    def merge(self, when: When = "always", *, tokens: int = 1) -> Merge:
        """For inference: gate and up as one matrix, one GEMM instead of two.

        when    "always"; or "auto": times both on this machine for `tokens` rows (once for each
                size, dtype, device and number of threads) and merges where that was faster. On
                CPUs it can be twice as slow.
        The parameters become views of the one matrix: the state dict keeps keys, order, dtypes
        and values, and what is written into them is what the merged matrix holds.

        Raises UsageError, in words, where a gradient is required, or where an optimizer, FSDP or
        DTensor, an adapter or a quantised layer holds the parts.
        """
        if when not in ("always", "auto"):
            raise UsageError(f"when is {when!r}", expected='"always" or "auto"')
        positive("tokens", tokens)
        refuse_if_held(self.gate_proj, self.up_proj)
        if self._fused is not None:
            return Merge(True)
        if when == "always":
            self._fused = fuse(self.gate_proj, self.up_proj)
            return Merge(True)
        choice = faster(self, tokens)
        if choice.merged:
            self._fused = fuse(self.gate_proj, self.up_proj)
        return choice

    def unmerge(self) -> None:
        """Give gate_proj and up_proj memory of their own again. Nothing happens if they have."""
        if self._fused is None:
            return
        self._fused = None
        with torch.no_grad():
            for linear in (self.gate_proj, self.up_proj):
                for parameter in linear.parameters(recurse=False):
                    parameter.data = parameter.data.clone()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GatedMLP:
        """`.to()`, `.half()`, `.cuda()`: they move each parameter alone, so merge again after."""
        merged, self._fused = self.merged, None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if merged and not self.gate_proj.weight.is_meta:
            self._fused = fuse(self.gate_proj, self.up_proj)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles are unmerged: their parameters get memory of their own."""
        return {**self.__dict__, "_fused": None}

    # ---- names ---------------------------------------------------------------------------------

    @classmethod
    def from_packed(
        cls,
        gate: PackedWeight,
        up: PackedWeight,
        down: PackedWeight,
        *,
        act: str = "silu",
        options: MLPOptions = _WIDE,
        dtype: torch.dtype = torch.float32,
    ) -> GatedMLP:
        """The MLP over weights in blocks (`gateup.ops.packed`): gate, up [I, H]; down [H, I].

        Its projections are QuantLinear. With "wide" rounding, without tiles and where no gradient
        is to flow, one kernel computes all of it. Raises UsageError for shapes that do not fit.
        """
        if up.shape != gate.shape or down.shape != gate.shape[::-1]:
            raise UsageError(
                f"gate is {list(gate.shape)}, up {list(up.shape)}, down {list(down.shape)}",
                expected="[I, H], [I, H] and [H, I]",
            )
        module = cls(gate.k, gate.n, act, options=options, device="meta", dtype=dtype)
        for name, w in zip(names.PROJECTIONS, (gate, up, down), strict=True):
            setattr(module, name, QuantLinear(w, dtype=dtype))
        return module

    @classmethod
    def from_state_dict(
        cls,
        tensors: Mapping[str, Tensor],
        prefix: str = "",
        dialect: names.Dialect = "hf",
        *,
        act: str = "silu",
        options: MLPOptions = _DEFAULT,
    ) -> GatedMLP:
        """The MLP whose tensors lie under `prefix`, which become its parameters uncopied.

        dialect  "hf" (gate_proj, up_proj, down_proj), "meta" (w1, w3, w2), "gguf" (ffn_gate,
                 ffn_up, ffn_down); gate and up in one, gate first: "phi3" (gate_up_proj,
                 down_proj), "megatron" (linear_fc1, linear_fc2)
        Raises InputError for a tensor that is missing, quantised or of a wrong shape.
        """
        found = names.read(tensors, prefix, dialect)
        width, hidden = found["gate_proj.weight"].shape
        dtype = found["gate_proj.weight"].dtype
        module = cls(hidden, width, act, bias=True, options=options, device="meta", dtype=dtype)
        for projection in names.PROJECTIONS:
            linear = getattr(module, projection)
            linear.weight = nn.Parameter(found[f"{projection}.weight"].detach())
            bias = found.get(f"{projection}.bias")
            linear.bias = None if bias is None else nn.Parameter(bias.detach())
        return module

    def to_state_dict(self, dialect: names.Dialect = "hf", prefix: str = "") -> dict[str, Tensor]:
        """The tensors under the dialect's names; `from_state_dict` reads them back, bit for bit."""
        own = {
            f"{projection}.{kind}": tensor.detach()
            for projection in names.PROJECTIONS
            for kind in ("weight", "bias")
            if (tensor := getattr(getattr(self, projection), kind)) is not None
        }
        return names.write(own, prefix, dialect)
