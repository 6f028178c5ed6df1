"""A model as data, without weights: one frozen description from which every figure is computed.

Letters: H hidden_size, I intermediate_size, T tokens, L layers, V vocab_size, E experts.
Linear weights are [out, in]. Canonical names are those of the files on the Hub.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from gateup.model.layout import SPLIT, GateUpLayout

Part = Literal["embedding", "attention", "mlp", "norm", "head"]
PARTS: tuple[Part, ...] = ("embedding", "attention", "mlp", "norm", "head")

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid", "identity", "gpt_oss"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor, or one group of like tensors that differ only in the expert's number.

    name     canonical name; contains "{e}" exactly when `copies` > 1
    shape    of one tensor, file order ([out, in] unless the layout says otherwise)
    part     which share of the model it is counted under (a router counts as "mlp")
    role     key of the family's name table: "gate_proj", "experts.down_proj", "q_norm", ...
    layer    layer number, None outside the layers
    copies   how many tensors of this shape the group stands for
    experts  experts held by the row (stacked or as copies); 0 for a tensor every token uses
    active_experts  how many of them one token uses (top_k)
    matmul   a GEMM weight: 2 FLOPs per parameter and token. False: norms, biases, lookups
    buffer   stored with the model but not trained (persistent buffer)
    """

    name: str
    shape: tuple[int, ...]
    part: Part
    role: str
    layer: int | None = None
    copies: int = 1
    experts: int = 0
    active_experts: int = 0
    matmul: bool = True
    buffer: bool = False

    @property
    def params(self) -> int:
        return prod(self.shape) * self.copies

    @property
    def active_params(self) -> int:
        """Parameters one token's forward pass uses."""
        if not self.experts:
            return self.params
        return self.params // self.experts * self.active_experts

    def names(self) -> Iterator[str]:
        """Every tensor's name in the group."""
        if self.copies == 1:
            yield self.name
        else:
            head, tail = self.name.split("{e}")
            for e in range(self.copies):
                yield f"{head}{e}{tail}"


@dataclass(frozen=True, slots=True)
class MLASpec:
    """Multi-head latent attention (DeepSeek-V2/V3): what is cached is the latent, not K and V."""

    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int | None = None


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """num_heads query heads of width head_dim (d_qk) against num_kv_heads, values v_head_dim (d_v).

    window   keys a token can see: sliding window or attention chunk; None: all of them
    chunked  the window is a chunk: a token sees its own chunk from the chunk's start on (Llama 4)
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None
    mla: MLASpec | None = None
    chunked: bool = False

    @property
    def kv_elements(self) -> int:
        """Cached elements per token of this layer (MLA: the latent and the shared rope key)."""
        if self.mla:
            return self.mla.kv_lora_rank + self.mla.qk_rope_head_dim
        return self.num_kv_heads * (self.head_dim + self.v_head_dim)

    @property
    def score_width(self) -> int:
        """n_heads·(d_qk + d_v): multiply-adds per token and visible key."""
        return self.num_heads * (self.head_dim + self.v_head_dim)

    def visible(self, context: int) -> int:
        """Keys that the token at the end of `context` sees (of a chunk: when it is full)."""
        return context if self.window is None else min(context, self.window)


@dataclass(frozen=True, slots=True)
class GatedMLPSpec:
    """down(act(gate(x)) * up(x)): three matrices of H·I."""

    intermediate_size: int
    act: Activation = "silu"
    bias: bool = False
    layout: GateUpLayout = SPLIT

    matrices = 3


@dataclass(frozen=True, slots=True)
class ClassicFFNSpec:
    """act(x W1 + b1) W2 + b2: two matrices of H·I (GPT-2, BERT)."""

    intermediate_size: int
    act: Activation = "gelu"
    bias: bool = True

    matrices = 2


@dataclass(frozen=True, slots=True)
class MoESpec:
    """num_experts gated MLPs of which top_k serve a token, beside an optional shared one.

    shared.intermediate_size is the width of all shared experts together.
    """

    num_experts: int
    top_k: int
    expert: GatedMLPSpec
    shared: GatedMLPSpec | None = None
    shared_gate: bool = False
    router_bias: bool = False

    matrices = 3

    @property
    def active_width(self) -> int:
        """Sum of I over the experts one token passes through, shared ones included."""
        shared = self.shared.intermediate_size if self.shared else 0
        return self.top_k * self.expert.intermediate_size + shared


MLP = GatedMLPSpec | ClassicFFNSpec | MoESpec


def active_width(mlp: MLP | None) -> int:
    """ΣI_active of a layer: the dense width, or k expert widths plus the shared ones; 0 without."""
    if mlp is None:
        return 0
    return mlp.active_width if isinstance(mlp, MoESpec) else mlp.intermediate_size


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer. A part that the layer does not have is None (DeciLM's no-op blocks)."""

    index: int
    attention: AttentionSpec | None
    mlp: MLP | None


@dataclass(frozen=True)
class ModelSpec:
    """The one description of a model. `rows` is its one list of tensors.

    dtype   the dtype config.json declares ("bf16", "f16", "f32", "f8_e4m3"); None: not said
    config  the config.json (or the equivalent made from GGUF metadata) the spec was built from
    notes   what a reader should know: unused keys, tensors in the file that are not counted
    """

    family: str
    architecture: str
    name: str
    hidden_size: int
    vocab_size: int
    tie_word_embeddings: bool
    layers: tuple[LayerSpec, ...]
    rows: tuple[TensorSpec, ...]
    max_position_embeddings: int | None = None
    dtype: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def params(self) -> int:
        """Parameters and persistent buffers; a tied head is counted once."""
        return sum(r.params for r in self.rows)

    @property
    def active_params(self) -> int:
        """Parameters one token uses; equals `params` in a dense model."""
        return sum(r.active_params for r in self.rows)

    @property
    def non_embedding_params(self) -> int:
        """Without input embeddings and output head, as model cards count."""
        return sum(r.params for r in self.rows if r.part not in ("embedding", "head"))

    def part_params(self, part: Part, layer: int | None = None) -> int:
        """Parameters of a part, in the model or in one layer."""
        return sum(
            r.params for r in self.rows if r.part == part and (layer is None or r.layer == layer)
        )

    def layer_rows(self, layer: int) -> tuple[TensorSpec, ...]:
        return tuple(r for r in self.rows if r.layer == layer)

    def tensors(self) -> Iterator[tuple[str, TensorSpec]]:
        """Every tensor by its canonical name, experts one by one where they are stored so."""
        for row in self.rows:
            for name in row.names():
                yield name, row
