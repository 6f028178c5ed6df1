"""What a decoder computes, as numbers: one frozen description that both decoders read.

Made from a ModelSpec and its config (`spec_config.py`), so that neither the torch decoder nor the
native one knows a family's name. Norm weights multiply as they are stored here (Gemma's 1 + w is
added when the weights are loaded).

Letters: H hidden_size, V vocab_size, D head_dim, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateup.model.spec import Activation


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary positions: pair j of a head, numbers j and j + len, turns by position · inv_freq[j].

    inv_freq  float32 values in radians, scaling already applied; the first 2·len of the D numbers
              of a head are turned, the rest (partial rotary) pass through
    scale     cosine and sine are multiplied by it (yarn, longrope)

    The GGUF of a Llama has its rows ordered for pairs (2j, 2j + 1); loading puts them back.
    """

    inv_freq: tuple[float, ...]
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """softmax over all E router logits, the top_k largest kept; `normalise`: their sum made 1."""

    num_experts: int
    top_k: int
    normalise: bool


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """One layer: x + post(attention(norm(x))), then x + post(mlp(norm(x))).

    rope       None: no positions in this layer (SmolLM3's every fourth)
    window     keys a token sees, itself included; None: all before it
    qk_norm    each head's query and key go through an RMS norm of width D before rope
    scale      attention scores are q·k times this
    softcap    scores become softcap · tanh(score / softcap) before the mask; None: they stay
    post_norm  norms on the outputs of attention and MLP before the residual sum (Gemma 2, 3)
    width      I of the MLP, or of one expert
    moe        None: a dense MLP
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeConfig | None
    window: int | None
    qk_norm: bool
    scale: float
    softcap: float | None
    post_norm: bool
    act: Activation
    width: int
    moe: MoEConfig | None = None


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A whole model.

    context          positions the description holds for (the KV cache's capacity may be less)
    norm_eps         added to the mean square in every norm
    embedding_scale  embeddings are multiplied by it (Gemma: √H)
    residual_scale   outputs of attention and MLP are multiplied by it (Granite)
    logit_scale      logits are multiplied by it (Granite)
    logit_softcap    logits become cap · tanh(logit / cap) (Gemma 2); None: they stay
    """

    family: str
    hidden_size: int
    vocab_size: int
    layers: tuple[LayerConfig, ...]
    context: int
    norm_eps: float
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None

    @property
    def kv_elements(self) -> int:
        """Elements of K and V together that one position takes over all layers."""
        return sum(2 * x.num_kv_heads * x.head_dim for x in self.layers)
