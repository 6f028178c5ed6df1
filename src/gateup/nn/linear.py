"""Linear layers and embeddings whose weights stay in the blocks of their file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gateup.errors import UsageError
from gateup.ops import packed
from gateup.ops.packed import PackedWeight
from gateup.ops.packed_weight import aligned

_aten: Any = torch.ops.aten


class Blocks(torch.Tensor):
    """What `weight` of such a layer is: the shape, dtype and device of a weight, and no numbers.

    PEFT, transformers and others ask a layer's weight what it is. Whoever computes with it, or
    writes to it (merging an adapter), meets one clear error.
    """

    packed: PackedWeight

    @staticmethod
    def __new__(cls, w: PackedWeight, dtype: torch.dtype) -> Blocks:
        make: Callable[..., Blocks] = torch.Tensor._make_wrapper_subclass
        self = make(cls, w.shape, dtype=dtype, device=w.data.device)
        self.packed = w
        return self

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Blocks({self.packed!r}, dtype={self.dtype})"

    def dequantize(self) -> Tensor:
        """A copy [n, k] in floating point."""
        return packed.dequantise(self.packed, dtype=self.dtype)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (_aten.detach.default, _aten.alias.default):
            return cls(args[0].packed, args[0].dtype)
        held = next(a for a in args if isinstance(a, cls)).packed
        raise UsageError(
            f"the weight of this layer is {held.type} blocks of a file, which are neither"
            f" computed with nor changed as numbers ({func.__name__.partition('.')[0]})",
            expected="the layer to be called; an adapter stays beside it",
            remedy="save the adapter on its own (save_pretrained) and merge it into the original"
            " model; layer.weight.dequantize() gives a copy in floating point",
        )


class _InBlocks(nn.Module):
    """What QuantLinear and QuantEmbedding share: a buffer of bytes instead of a parameter.

    `.to(dtype)` changes what the layer computes in and leaves the bytes alone: `like` is an empty
    tensor that follows the module's dtype.
    """

    blocks: Tensor
    like: Tensor

    def hold(self, w: PackedWeight, dtype: torch.dtype) -> None:
        self.weight_type, self.size, self.terms = w.type, w.shape, w.terms
        self.register_buffer("blocks", w.data)
        like = torch.empty(0, dtype=dtype, device=w.data.device)
        self.register_buffer("like", like, persistent=False)

    @property
    def packed(self) -> PackedWeight:
        n, k = self.size
        return PackedWeight(self.weight_type, n, k, self.blocks, self.terms)

    @property
    def weight(self) -> Blocks:
        return Blocks(self.packed, self.like.dtype)

    @weight.setter
    def weight(self, value: object) -> None:
        raise UsageError(
            f"the weight of a {type(self).__name__} is {self.weight_type} blocks of a file and"
            f" cannot be replaced by a {type(value).__name__}",
            remedy="make a layer of the new weight and put it into the model instead",
        )

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Also with assign=True, which takes memory as it comes: kernels read whole lines of it."""
        super()._load_from_state_dict(*args, **kwargs)
        self.blocks = aligned(self.blocks)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":  # nn.Module would register a parameter beside the property
            type(self).weight.fset(self, value)  # type: ignore[attr-defined]
        super().__setattr__(name, value)


class QuantLinear(_InBlocks, nn.Linear):  # type: ignore[misc]
    """x Wᵀ + bias with W in blocks. x [..., in] -> [..., out].

    An nn.Linear by type, so that adapters attach to it as to any other. Its weight is no
    parameter (see `Blocks`), its bias is one. Gradients flow to x and to the bias.
    """

    def __init__(
        self, w: PackedWeight, bias: Tensor | None = None, *, dtype: torch.dtype = torch.float32
    ) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = w.shape
        self.hold(w, dtype)
        if bias is not None and tuple(bias.shape) != (w.n,):
            raise UsageError(f"bias has shape {tuple(bias.shape)}", expected=f"[out] = ({w.n},)")
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias.to(dtype)))

    def forward(self, input: Tensor) -> Tensor:
        """x [..., in] -> [..., out], in x's dtype."""
        return packed.linear(input, self.packed, self.bias)

    def reset_parameters(self) -> None:
        raise UsageError("the weight of a QuantLinear comes from a file; it has no other start")

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.weight_type}, {self.packed.held}"


class QuantEmbedding(_InBlocks, nn.Embedding):  # type: ignore[misc]
    """Rows of a matrix in blocks, dequantised at look-up. index [...] -> [..., H].

    scale  what every row is multiplied by, rounded to the dtype first (Gemma 3: √H)
    dtype  of the results, until `.to` changes it
    """

    def __init__(
        self,
        w: PackedWeight,
        padding_idx: int | None = None,
        *,
        scale: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = w.shape
        self.padding_idx, self.scale = padding_idx, scale
        self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse = (
            None,
            2.0,
            False,
            False,
        )
        self.hold(w, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """index [...] int64 or int32 -> [..., H]"""
        rows = packed.dequantise(self.packed, input, self.like.dtype)
        if self.scale == 1.0:
            return rows
        return rows * torch.tensor(self.scale).to(rows)

    def reset_parameters(self) -> None:
        raise UsageError("the weight of a QuantEmbedding comes from a file; it has no other start")

    def extra_repr(self) -> str:
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, {self.weight_type}, {self.packed.held}"
        )
