"""How gate and up lie in memory (declared per family, never guessed from shapes)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Form = Literal["split", "concat", "interleaved"]
Order = Literal["gate_up", "up_gate"]
Orientation = Literal["out_in", "in_out"]


@dataclass(frozen=True, slots=True)
class GateUpLayout:
    """Layout of one MLP's (or one MoE layer's) gate and up projections.

    form         "split": two tensors; "concat": one tensor, halves; "interleaved": neighbours
    order        which comes first along the output axis
    orientation  "out_in": [out, in] as torch's Linear; "in_out": [in, out] (gpt-oss, llama4)
    stacked      a leading expert axis [E, ...] in one tensor (False: one tensor per expert)
    """

    form: Form = "split"
    order: Order = "gate_up"
    orientation: Orientation = "out_in"
    stacked: bool = False


SPLIT = GateUpLayout()
