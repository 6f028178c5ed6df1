"""Experts of a mixture whose weights stay in the blocks of their file."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gateup.errors import UsageError
from gateup.ops import packed
from gateup.ops.activations import activation
from gateup.ops.packed import PackedWeight

_PARTS = ("gate_proj", "up_proj", "down_proj")


class QuantExperts(nn.Module):
    """Σ over a token's k experts of weight · down(act(gate(x)) ⊙ up(x)).

    gate, up  one matrix [I, H] for each expert; down  [H, I]. All of one kind (gate, say) have
              the same type and lie in one buffer [E, ...]: gate_proj, up_proj, down_proj.

    forward(x [T, H], index [T, k], weights [T, k]) -> [T, H], as transformers calls its experts.
    Gradients flow to x and to the routing weights.
    """

    gate_proj: Tensor
    up_proj: Tensor
    down_proj: Tensor

    def __init__(
        self,
        gate: Sequence[PackedWeight],
        up: Sequence[PackedWeight],
        down: Sequence[PackedWeight],
        act: str = "silu",
    ) -> None:
        super().__init__()
        self.act = activation(act).name
        self.num_experts = len(gate)
        self.kinds: list[tuple[str, int, int, int]] = []
        for name, weights in zip(_PARTS, (gate, up, down), strict=True):
            first = weights[0]
            kind = (first.type, first.n, first.k, first.terms)
            if len(weights) != len(gate) or any(
                (w.type, w.n, w.k, w.terms) != kind for w in weights
            ):
                raise UsageError(
                    f"the experts' {name} are not alike", expected="one type, shape and number"
                )
            self.kinds.append(kind)
            self.register_buffer(name, _stacked([w.data for w in weights]))

    def expert(self, number: int) -> tuple[PackedWeight, PackedWeight, PackedWeight]:
        """(gate, up, down) of one expert; views."""
        gate, up, down = (
            PackedWeight(type_, n, k, data[number], terms)
            for data, (type_, n, k, terms) in zip(
                (self.gate_proj, self.up_proj, self.down_proj), self.kinds, strict=True
            )
        )
        return gate, up, down

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        out = torch.zeros_like(hidden_states, dtype=torch.float32)
        # A sort instead of a mask for each expert: 128 experts and one token need no 128 searches.
        order = top_k_index.reshape(-1).argsort(stable=True)
        counts = torch.bincount(top_k_index.reshape(-1), minlength=self.num_experts).tolist()
        start = 0
        for number, count in enumerate(counts[: self.num_experts]):
            if count:
                chosen = order[start : start + count]
                token, slot = chosen // top_k_index.shape[1], chosen % top_k_index.shape[1]
                y = packed.gated_mlp(hidden_states[token], *self.expert(number), self.act)
                out = out.index_add(0, token, y.float() * top_k_weights[token, slot, None].float())
            start += count
        return out.to(hidden_states.dtype)

    def extra_repr(self) -> str:
        kinds = ", ".join(f"{n}×{k} {type_}" for type_, n, k, _ in self.kinds)
        return f"{self.num_experts} experts, {kinds}, act={self.act}"


def _stacked(parts: list[Tensor]) -> Tensor:
    """[E, ...] without a copy where the parts lie one behind the other in one memory."""
    first, size = parts[0], parts[0].numel()
    base = first.untyped_storage().data_ptr()
    if all(
        p.untyped_storage().data_ptr() == base
        and p.is_contiguous()
        and p.storage_offset() == first.storage_offset() + i * size
        for i, p in enumerate(parts)
    ):
        return first.as_strided((len(parts), *first.shape), (size, *first.stride()))
    return torch.stack(parts)
