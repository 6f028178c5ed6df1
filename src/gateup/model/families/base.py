"""What a family is made of: name tables, the builder of tensor rows, the registry entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateup.errors import ConfigError
from gateup.model.config import MAX_EXPERTS, MAX_LAYERS, Config
from gateup.model.spec import (
    Activation,
    AttentionSpec,
    GatedMLPSpec,
    LayerSpec,
    ModelSpec,
    Part,
    TensorSpec,
)


class Names(NamedTuple):
    """One role's name in each dialect; {i} is the layer, {e} the expert. None: no such name."""

    hf: str
    gguf: str | None = None
    meta: str | None = None
    megatron: str | None = None


NameTable = Mapping[str, Names]


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor as llama.cpp's converter writes it.

    ne       dimensions in ggml's order: ne[0] is the row length (input width)
    rows     the spec rows it is made from (empty: extra tables such as rope_freqs)
    params   parameters of the spec it holds; 0 for such extra tables
    """

    name: str
    ne: tuple[int, ...]
    rows: tuple[TensorSpec, ...]
    params: int

    @property
    def elements(self) -> int:
        n = 1
        for d in self.ne:
            n *= d
        return n


# row -> the GGUF tensors it becomes; None: the default (names table, ne = shape reversed,
# experts stacked along the last axis)
GGUFRule = Callable[[ModelSpec, TensorSpec], "list[GGUFTensor] | None"]
# spec -> tensors of the GGUF that no row gives rise to
GGUFExtra = Callable[[ModelSpec], "list[GGUFTensor]"]


@dataclass(frozen=True)
class Family:
    """One entry of the registry.

    model_type     config.json's model_type, the family's name
    architectures  class names that config.json may list
    names          role -> Names
    build          (Config, display name) -> ModelSpec
    gguf_arch      general.architecture of the GGUF; None: llama.cpp has none for it
    gguf_keys      GGUF metadata key (without the arch prefix) -> config.json key
    gguf_rule      exceptions to the default row -> GGUF mapping
    gguf_extra     tensors of the GGUF beyond the rows
    gguf_config    finishing touch on the config made from GGUF metadata
                   (metadata, tensor shapes by name, config so far) -> config
    """

    model_type: str
    architectures: tuple[str, ...]
    names: NameTable
    build: Callable[[Config, str], ModelSpec]
    gguf_arch: str | None = None
    gguf_keys: Mapping[str, str] = field(default_factory=dict)
    gguf_rule: GGUFRule | None = None
    gguf_extra: GGUFExtra | None = None
    gguf_config: (
        Callable[[Mapping[str, Any], Mapping[str, tuple[int, ...]], dict[str, Any]], dict[str, Any]]
        | None
    ) = None


# hidden_act spellings found in configs -> our names
ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "swiglu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "sigmoid": "sigmoid",
    "linear": "identity",
    "identity": "identity",
}

DTYPES = {
    "float64": "f64",
    "float32": "f32",
    "float": "f32",
    "float16": "f16",
    "half": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8_e4m3",
    "float8_e5m2": "f8_e5m2",
}


def activation(cfg: Config, *keys: str, default: str = "silu") -> Activation:
    """The activation named by the first of `keys` present; unknown names are refused."""
    name = cfg.text(*(keys or ("hidden_act",)), default=default)
    if name not in ACTIVATIONS:
        raise cfg.fault(keys[0] if keys else "hidden_act", name, "one of " + ", ".join(ACTIVATIONS))
    return ACTIVATIONS[name]


def dtype(cfg: Config) -> str | None:
    """The declared dtype (`torch_dtype`, or `dtype` in newer files), in our names."""
    name = cfg.raw("torch_dtype", "dtype")
    if name is None or name == "auto":
        return None
    if not isinstance(name, str) or name.removeprefix("torch.") not in DTYPES:
        raise cfg.fault("torch_dtype", name, "one of " + ", ".join(DTYPES))
    return DTYPES[name.removeprefix("torch.")]


def num_layers(cfg: Config, *keys: str) -> int:
    n: int = cfg.integer(*(keys or ("num_hidden_layers",)), high=MAX_LAYERS)
    return n


def num_experts(cfg: Config, *keys: str) -> int:
    n: int = cfg.integer(*keys, high=MAX_EXPERTS)
    return n


def top_k(cfg: Config, experts: int, *keys: str) -> int:
    """Experts per token, at most as many as there are."""
    k: int = cfg.integer(*(keys or ("num_experts_per_tok",)))
    if k > experts:
        raise cfg.fault((keys or ("num_experts_per_tok",))[0], k, f"at most the {experts} experts")
    return k


def gqa(cfg: Config, hidden_size: int, *, window: int | None = None) -> AttentionSpec:
    """Grouped-query attention from the standard keys. head_dim is read where it is given.

    A num_key_value_heads that is null means as many as query heads.
    """
    heads = cfg.integer("num_attention_heads")
    kv = cfg.integer("num_key_value_heads", default=heads)
    head_dim = cfg.integer("head_dim", default=None)
    if head_dim is None:
        if hidden_size % heads:
            raise ConfigError(
                f"hidden_size {hidden_size} is not a multiple of num_attention_heads {heads}",
                where=cfg.where,
                expected="a multiple, or a head_dim key",
            )
        head_dim = hidden_size // heads
    if heads % kv:
        raise ConfigError(
            f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv}",
            where=cfg.where,
            expected="each KV head to serve the same number of query heads",
        )
    return AttentionSpec(heads, kv, head_dim, head_dim, window=window)


class Rows:
    """Collects TensorSpecs by role, in file order, taking names from the family's table."""

    def __init__(self, names: NameTable) -> None:
        self.names = names
        self.list: list[TensorSpec] = []

    def add(
        self,
        role: str,
        shape: tuple[int, ...],
        part: Part,
        layer: int | None = None,
        *,
        matmul: bool = True,
        copies: int = 1,
        experts: int = 0,
        active: int = 0,
        buffer: bool = False,
    ) -> None:
        """Append one row; `layer` fills {i}, and {e} stays when there are several copies."""
        name = self.names[role].hf
        if layer is not None:
            name = name.replace("{i}", str(layer))
        if copies == 1:
            name = name.replace("{e}", "0")
        self.list.append(
            TensorSpec(name, shape, part, role, layer, copies, experts, active, matmul, buffer)
        )

    def norm(self, role: str, width: int, layer: int | None = None, *, bias: bool = False) -> None:
        """A norm's weight [width] and, for LayerNorm, its bias (role + ".bias")."""
        self.add(role, (width,), "norm", layer, matmul=False)
        if bias:
            self.add(role + ".bias", (width,), "norm", layer, matmul=False)

    def linear(
        self, role: str, out: int, inp: int, part: Part, layer: int | None, *, bias: bool = False
    ) -> None:
        """A linear layer's weight [out, inp] and, if it has one, bias (role + ".bias")."""
        self.add(role, (out, inp), part, layer)
        if bias:
            self.add(role + ".bias", (out,), part, layer, matmul=False)

    def attention(
        self,
        layer: int,
        hidden: int,
        attn: AttentionSpec,
        *,
        qkv_bias: bool = False,
        o_bias: bool = False,
    ) -> None:
        """q, k, v, o projections of grouped-query attention."""
        q = attn.num_heads * attn.head_dim
        k = attn.num_kv_heads * attn.head_dim
        v = attn.num_kv_heads * attn.v_head_dim
        self.linear("q_proj", q, hidden, "attention", layer, bias=qkv_bias)
        self.linear("k_proj", k, hidden, "attention", layer, bias=qkv_bias)
        self.linear("v_proj", v, hidden, "attention", layer, bias=qkv_bias)
        out = attn.num_heads * attn.v_head_dim
        self.linear("o_proj", hidden, out, "attention", layer, bias=o_bias)

    def gated_mlp(self, layer: int, hidden: int, mlp: GatedMLPSpec, *, prefix: str = "") -> None:
        """Split gate, up, down projections; `prefix` such as "shared_expert." picks the role."""
        width = mlp.intermediate_size
        for role, out, inp in (
            ("gate_proj", width, hidden),
            ("up_proj", width, hidden),
            ("down_proj", hidden, width),
        ):
            self.linear(prefix + role, out, inp, "mlp", layer, bias=mlp.bias)

    def experts(
        self, layer: int, hidden: int, expert: GatedMLPSpec, count: int, active: int
    ) -> None:
        """Experts stored one by one: role "experts.gate_proj" and so on, `count` copies."""
        width = expert.intermediate_size
        for role, shape in (
            ("gate_proj", (width, hidden)),
            ("up_proj", (width, hidden)),
            ("down_proj", (hidden, width)),
        ):
            self.add(
                "experts." + role,
                shape,
                "mlp",
                layer,
                copies=count,
                experts=count,
                active=active,
            )


@dataclass(frozen=True)
class Frame:
    """What a decoder has around its layers: input embeddings, the last norm, the head."""

    family: str
    architecture: str
    names: NameTable
    hidden_size: int
    vocab_size: int
    tie: bool

    def rows(self) -> Rows:
        """The row list, begun with the embeddings [V, H]."""
        rows = Rows(self.names)
        shape = (self.vocab_size, self.hidden_size)
        rows.add("embed_tokens", shape, "embedding", matmul=False)
        return rows

    def finish(
        self,
        cfg: Config,
        name: str,
        rows: Rows,
        layers: list[LayerSpec],
        *,
        max_positions: int | None = None,
        notes: tuple[str, ...] = (),
    ) -> ModelSpec:
        """Add the last norm and an untied head [V, H]; the finished spec."""
        rows.norm("norm", self.hidden_size)
        if not self.tie:
            rows.linear("lm_head", self.vocab_size, self.hidden_size, "head", None)
        return self.spec(cfg, name, rows, layers, max_positions=max_positions, notes=notes)

    def spec(
        self,
        cfg: Config,
        name: str,
        rows: Rows,
        layers: list[LayerSpec],
        *,
        max_positions: int | None = None,
        notes: tuple[str, ...] = (),
    ) -> ModelSpec:
        """The spec of exactly these rows."""
        if max_positions is None:
            max_positions = cfg.integer("max_position_embeddings", default=None, high=1 << 40)
        return ModelSpec(
            family=self.family,
            architecture=self.architecture,
            name=name,
            hidden_size=self.hidden_size,
            vocab_size=self.vocab_size,
            tie_word_embeddings=self.tie,
            layers=tuple(layers),
            rows=tuple(rows.list),
            max_position_embeddings=max_positions,
            dtype=dtype(cfg),
            config=cfg.values,
            notes=notes,
        )


def _bias(name: str) -> str:
    return name.removesuffix("weight") + "bias"


def with_bias(names: Mapping[str, Names]) -> dict[str, Names]:
    """The table plus role + ".bias" for every role whose names end in ".weight"."""
    out = dict(names)
    for role, n in names.items():
        if n.hf.endswith(".weight"):
            out[role + ".bias"] = Names(
                _bias(n.hf),
                n.gguf and _bias(n.gguf),
                n.meta and _bias(n.meta),
                n.megatron and _bias(n.megatron),
            )
    return out
