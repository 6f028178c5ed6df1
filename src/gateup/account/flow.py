"""The shapes that flow through one layer: each step's output, its bytes, weights and FLOPs.

B sequences of T tokens, H hidden_size, I intermediate_size, k experts per token, S keys a token
sees at most. Every weight of the layer is in exactly one step, so the steps' parameters, bytes
and FLOPs add up to the layer's in the ledger. Elementwise work (norms, rope, softmax, activation,
residual) is left out of FLOPs, as everywhere here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from gateup.account.flops import visible_sum
from gateup.errors import UsageError
from gateup.model.families.classic import CONV1D_ROLES
from gateup.model.quant.formats import StoredTensor, format_of
from gateup.model.spec import (
    AttentionSpec,
    ClassicFFNSpec,
    GatedMLPSpec,
    LayerSpec,
    ModelSpec,
    MoESpec,
    Part,
    TensorSpec,
)

Op = Literal["norm", "linear", "attention", "elementwise", "route"]

# Roles in the order a forward pass uses them. A role missing here follows its part's last one:
# it is counted all the same.
PROJECTIONS = (
    "qkv_proj",
    "q_a_proj",
    "q_a_layernorm",
    "q_proj",
    "q_b_proj",
    "kv_a_proj_with_mqa",
    "kv_a_layernorm",
    "kv_b_proj",
    "k_proj",
    "v_proj",
    "q_norm",
    "k_norm",
)
GATES = ("gate_up_proj", "gate_proj", "up_proj")
DOWN = "down_proj"


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `shape` is the output's; `nbytes` its size in the dtype of activations.

    weight_nbytes  all weights of the step as stored, experts not chosen included
    flops          2 per multiply-add; 0 for elementwise work; `formula` says how
    """

    name: str
    op: Op
    part: Part
    shape: tuple[int, ...]
    nbytes: int
    params: int = 0
    weight_nbytes: int = 0
    flops: int = 0
    formula: str = ""


@dataclass(frozen=True, slots=True)
class LayerFlow:
    """One layer's steps, in order, for `batch` sequences of `seq` tokens in `dtype`."""

    layer: int
    batch: int
    seq: int
    dtype: str
    steps: tuple[Step, ...]

    @property
    def params(self) -> int:
        return sum(s.params for s in self.steps)

    @property
    def weight_nbytes(self) -> int:
        return sum(s.weight_nbytes for s in self.steps)

    @property
    def gemm_flops(self) -> int:
        return sum(s.flops for s in self.steps if s.op != "attention")

    @property
    def attention_flops(self) -> int:
        """Scores and weighted values, the part that grows with T²."""
        return sum(s.flops for s in self.steps if s.op == "attention")

    @property
    def flops(self) -> int:
        return sum(s.flops for s in self.steps)


def layer_flow(
    spec: ModelSpec,
    layer: int,
    stored: Sequence[StoredTensor],
    *,
    batch: int,
    seq: int,
    dtype: str,
) -> LayerFlow:
    """The flow through layer number `layer`.

    Raises UsageError for a layer that the model does not have.
    """
    if not 0 <= layer < spec.num_layers:
        raise UsageError(
            f"--layer is {layer}", expected=f"0 to {spec.num_layers - 1}: {spec.name} has no other"
        )
    walk = _Walk(spec, spec.layers[layer], stored, (batch, seq), format_of(dtype).block_bytes)
    walk.attention()
    walk.feed_forward()
    return LayerFlow(layer, batch, seq, dtype, tuple(walk.steps))


def causal(spec: ModelSpec) -> bool:
    """Whether a token sees earlier ones only: every family here but BERT."""
    return spec.family != "bert"


def uses_rope(spec: ModelSpec, layer: int) -> bool:
    """Whether a layer rotates its queries and keys: not with a table of position embeddings, nor
    in the layers that SmolLM3 and Llama 4 leave out (0 in `no_rope_layers`, or every n-th)."""
    if any(r.role == "position_embeddings" for r in spec.rows):
        return False
    listed = spec.config.get("no_rope_layers")
    if isinstance(listed, list) and layer < len(listed):
        return bool(listed[layer])
    interval = spec.config.get("no_rope_layer_interval")
    return not (isinstance(interval, int) and interval > 0 and (layer + 1) % interval == 0)


class _Walk:
    """Collects steps; `left` holds the layer's rows, by role, that no step has taken yet."""

    def __init__(
        self,
        spec: ModelSpec,
        layer: LayerSpec,
        stored: Sequence[StoredTensor],
        tokens: tuple[int, int],
        size: int,
    ) -> None:
        self.spec = spec
        self.layer = layer
        self.hidden = spec.hidden_size
        self.batch, self.seq = tokens
        self.size = size
        self.steps: list[Step] = []
        rows = spec.layer_rows(layer.index)
        roles = {r.role for r in rows}
        self.left: dict[str, list[TensorSpec]] = {}
        for row in rows:
            # A bias belongs to its matrix's step.
            parent = row.role.removesuffix(".bias")
            self.left.setdefault(parent if parent in roles else row.role, []).append(row)
        self.nbytes: dict[str, int] = {}
        for tensor in stored:
            if tensor.row is not None and tensor.row.layer == layer.index:
                name = tensor.row.name
                self.nbytes[name] = self.nbytes.get(name, 0) + tensor.nbytes

    @property
    def wide(self) -> tuple[int, int, int]:
        return (self.batch, self.seq, self.hidden)

    def add(
        self,
        name: str,
        op: Op,
        part: Part,
        shape: tuple[int, ...],
        *,
        rows: Sequence[TensorSpec] = (),
        flops: int = 0,
        formula: str = "",
    ) -> None:
        self.steps.append(
            Step(
                name,
                op,
                part,
                shape,
                prod(shape) * self.size,
                sum(r.params for r in rows),
                sum(self.nbytes.get(r.name, 0) for r in rows),
                flops,
                formula,
            )
        )

    def take(self, *roles: str) -> None:
        """A step for each of `roles` that the layer has and that is not taken yet."""
        for role in roles:
            rows = self.left.pop(role, None)
            if rows:
                self._weights(role, rows)

    def take_part(self, part: Part) -> None:
        """Everything of a part that no table above names."""
        self.take(*(role for role, rows in tuple(self.left.items()) if rows[0].part == part))

    def _weights(self, role: str, rows: list[TensorSpec]) -> None:
        main = rows[0]
        matmuls = [r for r in rows if r.matmul]
        if not matmuls:
            op: Op = "norm" if main.part == "norm" else "elementwise"
            self.add(role, op, main.part, self._normed(main), rows=rows)
            return
        tokens = self.batch * self.seq
        flops = sum(2 * r.active_params * tokens for r in matmuls)
        out = self._out_width(matmuls[0])
        bt = f"{self.batch}·{self.seq}"
        if main.experts:
            chosen = main.active_experts
            shape: tuple[int, ...] = (tokens * chosen, out)
            inp = matmuls[0].params // main.experts // out
            formula = f"2·B·T·k·in·out = 2·{bt}·{chosen}·{inp}·{out}"
        else:
            shape = (self.batch, self.seq, out)
            inp = matmuls[0].params // out
            formula = f"2·B·T·in·out = 2·{bt}·{inp}·{out}"
        op = "route" if role == "router" else "linear"
        self.add(role, op, main.part, shape, rows=rows, flops=flops, formula=formula)

    def _normed(self, row: TensorSpec) -> tuple[int, ...]:
        width = row.shape[-1]
        attn = self.layer.attention
        if attn and row.role in ("q_norm", "k_norm") and width == attn.head_dim != self.hidden:
            heads = attn.num_heads if row.role == "q_norm" else attn.num_kv_heads
            return (self.batch, heads, self.seq, width)
        if row.part == "norm":
            return (self.batch, self.seq, width)
        return row.shape

    def _out_width(self, row: TensorSpec) -> int:
        """Output features of a matrix: the first of its two dimensions, unless declared else."""
        mlp = self.layer.mlp
        turned = self.spec.family == "gpt2" and row.role in CONV1D_ROLES
        if isinstance(mlp, MoESpec) and row.experts:
            turned = mlp.expert.layout.orientation == "in_out"
        elif isinstance(mlp, GatedMLPSpec) and row.part == "mlp":
            turned = mlp.layout.orientation == "in_out"
        return row.shape[-1] if turned else row.shape[-2]

    def attention(self) -> None:
        """norm -> q, k, v -> rope -> scores -> softmax -> values -> o -> (norm) -> residual."""
        first = "input_layernorm" in self.left
        self.take("input_layernorm", *PROJECTIONS)
        if self.layer.attention is not None:
            out = self.left.pop("o_proj", None)
            self.take_part("attention")  # attention sinks, and what no table above names
            self._scores(self.layer.attention)
            if out:
                self._weights("o_proj", out)
        self.take_part("attention")
        if not self.steps:
            return
        # Gemma 2/3 and OLMo 2 norm the sublayer's output, BERT the sum; elsewhere this norm is
        # the MLP's input.
        if "pre_feedforward_layernorm" in self.left or not (first or self.post_norm):
            self.take("post_attention_layernorm")
        self.add("residual", "elementwise", "attention", self.wide)

    def _scores(self, attn: AttentionSpec) -> None:
        B, T, n = self.batch, self.seq, attn.num_heads
        keys = attn.visible(T)
        pairs = B * visible_sum(attn, T, causal=causal(self.spec))
        if uses_rope(self.spec, self.layer.index):
            self.add("rope", "elementwise", "attention", (B, n, T, attn.head_dim))
        for name, shape, width in (
            ("scores", (B, n, T, keys), attn.head_dim),
            ("softmax", (B, n, T, keys), 0),
            ("values", (B, T, n * attn.v_head_dim), attn.v_head_dim),
        ):
            self.add(
                name,
                "attention" if width else "elementwise",
                "attention",
                shape,
                flops=2 * n * width * pairs,
                formula=f"2·n_heads·d·pairs = 2·{n}·{width}·{pairs}" if width else "",
            )

    def feed_forward(self) -> None:
        """norm -> (router, top-k) -> gate, up -> act ⊙ up -> down -> (combine) -> residual."""
        mlp = self.layer.mlp
        self.take("post_attention_layernorm", "pre_feedforward_layernorm")
        if isinstance(mlp, MoESpec):
            self._moe(mlp)
        elif mlp is not None:
            self._dense(mlp, "")
        self.take_part("mlp")
        if self.post_norm:
            self.add("residual", "elementwise", "mlp", self.wide)
        self.take(*tuple(self.left))  # a norm of the output
        if not self.post_norm and self.steps and self.steps[-1].name != "residual":
            self.add("residual", "elementwise", "mlp", self.wide)

    @property
    def post_norm(self) -> bool:
        """norm(x + f(x)), the order BERT has."""
        return self.spec.family == "bert"

    def _dense(self, mlp: GatedMLPSpec | ClassicFFNSpec, prefix: str) -> None:
        width = mlp.intermediate_size
        self.take(*(prefix + role for role in GATES))
        shape = (self.batch, self.seq, width)
        self.add(prefix + _activation(mlp), "elementwise", "mlp", shape)
        self.take(prefix + DOWN)

    def _moe(self, mlp: MoESpec) -> None:
        tokens, k = self.batch * self.seq, mlp.top_k
        self.take("router", "e_score_correction_bias")
        self.add("top-k", "route", "mlp", (self.batch, self.seq, k))
        self.take(*("experts." + role for role in GATES))
        self.add(
            "experts." + _activation(mlp.expert),
            "elementwise",
            "mlp",
            (tokens * k, mlp.expert.intermediate_size),
        )
        self.take("experts." + DOWN)
        if mlp.shared:
            self._dense(mlp.shared, "shared_expert.")
        self.take_part("mlp")
        self.add("combine", "elementwise", "mlp", self.wide)


def _activation(mlp: GatedMLPSpec | ClassicFFNSpec) -> str:
    return mlp.act if isinstance(mlp, ClassicFFNSpec) else f"{mlp.act}(gate) ⊙ up"
