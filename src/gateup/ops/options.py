"""How the gated MLP is computed: rounding, what backward keeps, and tiling over tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from gateup.errors import UsageError
from gateup.ops.arguments import positive

Rounding = Literal["hf", "wide"]
# What an op's schema can carry; no batch has as many tokens.
_MOST = 2**63 - 1

Save = Literal["all", "gate_up", "input"]


@dataclass(frozen=True, slots=True)
class MLPOptions:
    """One choice of how `down(act(gate(x)) * up(x))` runs. Any combination is allowed.

    rounding  "hf": each intermediate in the input's dtype, as transformers' eager MLP does;
              "wide": float32 from the GEMM's output through act ⊙ up, rounded once
    save      what backward keeps, per token in elements: "all" x, gate, up and the product
              (H+3I); "gate_up" x, gate and up (H+2I); "input" x (H)
    tile      tokens computed at a time; None: all of them
    budget    bytes the transient (gate, up, product and their gradients) may take; picks the tile
    """

    rounding: Rounding = "hf"
    save: Save = "all"
    tile: int | None = None
    budget: int | None = None

    def __post_init__(self) -> None:
        if self.rounding not in get_args(Rounding):
            raise UsageError(f"rounding is {self.rounding!r}", expected='"hf" or "wide"')
        if self.save not in get_args(Save):
            raise UsageError(f"save is {self.save!r}", expected='"all", "gate_up" or "input"')
        for name, unit in (("tile", "tokens"), ("budget", "bytes")):
            value = getattr(self, name)
            if value is not None:
                positive(name, value, unit)
        if self.tile is not None and self.budget is not None:
            raise UsageError(
                f"both tile ({self.tile}) and budget ({self.budget}) are given",
                expected="one of them",
            )

    def tile_size(self, intermediate_size: int, itemsize: int) -> int | None:
        """Tokens per tile, whatever their number; None: all of them at once.

        Raises UsageError when the budget is smaller than one token's transient.
        """
        if self.budget is None:
            return None if self.tile is None else min(self.tile, _MOST)
        per_token = self.transient(intermediate_size, itemsize)
        if self.budget < per_token:
            parts = f"4 intermediates × {intermediate_size} × {per_token // 4 // intermediate_size}"
            raise UsageError(
                f"budget is {self.budget} bytes, one token needs {per_token}",
                expected=f"at least {per_token} ({parts} bytes), and n times that for n tokens"
                " at a time",
            )
        return min(self.budget // max(1, per_token), _MOST)

    def tile_for(self, tokens: int, intermediate_size: int, itemsize: int) -> int:
        """The same for a given number of tokens: at least 1 and at most `tokens`."""
        size = self.tile_size(intermediate_size, itemsize)
        return max(1, tokens if size is None else min(size, tokens))

    def transient(self, intermediate_size: int, itemsize: int) -> int:
        """Bytes one token's intermediates take at backward's peak.

        gate, up, the product's gradient and the product, then d_gate and d_up in place of the
        last two: 4 buffers of width I alive at once; in float32 when rounding is "wide".
        """
        return 4 * intermediate_size * (max(itemsize, 4) if self.rounding == "wide" else itemsize)


def checked(options: object) -> MLPOptions:
    """`options` itself; UsageError when it is something else."""
    if not isinstance(options, MLPOptions):
        raise UsageError(
            f"options is of type {type(options).__name__}", expected="gateup.ops.MLPOptions(...)"
        )
    return options
