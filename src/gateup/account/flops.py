"""FLOPs of decode, prefill and training; a multiply-add counts 2.

GEMM FLOPs are 2 per active matrix parameter and token: an embedding is a lookup (0), a tied head
is a GEMM (2·V·H) although it holds no parameters. Attention FLOPs are those of QK^T and PV:
2·n_h·(d_qk + d_v) for each pair of a token and a key it sees. Elementwise work (norms, rotary
embeddings, softmax, activations, the product of gate and up, routing, the loss) is left out.

MLA. In prefill and training each token's latent is expanded once (kv_b_proj, a matrix like any
other) and attention runs at d_qk + d_v. Decode works on the cached latent: kv_b_proj's two halves
multiply the query and the output instead, which costs the same GEMM, and attention runs at
(r_kv + d_rope) + r_kv per head and key ("absorbed"). `mla="expanded"` counts decode as prefill
does, which is the crossover's convention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateup.account.figure import Figure, Kind
from gateup.account.ledger import SHAPES, gemm_figure, layer_label, share, tied_head
from gateup.account.workload import Workload
from gateup.model.spec import PARTS, AttentionSpec, ModelSpec, Part

MLADecode = Literal["absorbed", "expanded"]
# A figure's two texts: in letters, in numbers.
Text = tuple[str, str]


@dataclass(frozen=True)
class Flops:
    """FLOPs of one step, `what`; `formulas` has the texts for each key of `figures()`.

    adapter  LoRA's matrices (training only)
    kind     "bound" where the step may skip some of what is counted
    """

    gemm: Mapping[Part, int]
    attention: int
    what: str = ""
    kind: Kind = "exact"
    formulas: Mapping[str, Text] = field(default_factory=dict)
    adapter: int = 0

    @property
    def total(self) -> int:
        return sum(self.gemm.values()) + self.attention + self.adapter

    @property
    def mlp_share(self) -> float:
        """The MLP's part of all counted FLOPs, attention scores included."""
        return self.gemm.get("mlp", 0) / self.total if self.total else 0.0

    def figures(self) -> dict[str, Figure]:
        """gemm.<part> for the parts that have any, attention_scores, adapter, total, mlp_share."""
        values = {f"gemm.{part}": value for part, value in self.gemm.items() if value}
        values["attention_scores"] = self.attention
        if self.adapter:
            values["adapter"] = self.adapter
        out = {
            key: Figure(
                value, "FLOP", self.kind, *self.formulas.get(key, (key, str(value))), SHAPES
            )
            for key, value in values.items()
        }
        out["total"] = Figure(
            self.total,
            "FLOP",
            self.kind,
            " + ".join(values),
            " + ".join(str(v) for v in values.values()),
            SHAPES,
        )
        out["mlp_share"] = share(self.gemm.get("mlp", 0), self.total, f"FLOPs, {self.what}")
        return out


def gemm_per_token(spec: ModelSpec) -> dict[Part, int]:
    """GEMM FLOPs of one token's forward pass, by part."""
    out: dict[Part, int] = dict.fromkeys(PARTS, 0)
    for row in spec.rows:
        if row.matmul:
            out[row.part] += 2 * row.active_params
    if tied_head(spec):
        out["head"] += 2 * spec.vocab_size * spec.hidden_size
    return out


def score_flops(attn: AttentionSpec, mla: MLADecode = "expanded") -> int:
    """FLOPs of QK^T and PV for one token and one key it sees."""
    if attn.mla and mla == "absorbed":
        width = 2 * attn.mla.kv_lora_rank + attn.mla.qk_rope_head_dim
        return 2 * attn.num_heads * width
    return 2 * attn.score_width


def visible_keys(attn: AttentionSpec, context: int) -> int:
    """Keys the last of `context` tokens sees: min(T, w), or its place in its chunk."""
    if attn.window is None:
        return context
    if attn.chunked:
        return (context - 1) % attn.window + 1 if context else 0
    return min(context, attn.window)


def visible_sum(attn: AttentionSpec, tokens: int, *, causal: bool = True) -> int:
    """Pairs (token, key it sees) over a sequence of `tokens`.

    Causal: Σ_{p=1..T} min(p, w) = w(w+1)/2 + (T−w)·w past a sliding window w, else T(T+1)/2;
    chunks of w: each one a sequence of its own. Not causal: T², the dense product with whatever
    mask, windows or not.
    """
    if not causal:
        return tokens * tokens
    if attn.chunked and attn.window is not None:
        whole, rest = divmod(tokens, attn.window)
        return whole * _triangle(attn.window) + _triangle(rest)
    w = tokens if attn.window is None else min(attn.window, tokens)
    return _triangle(w) + (tokens - w) * w


def _triangle(n: int) -> int:
    return n * (n + 1) // 2


def decode_flops(spec: ModelSpec, context: int, *, mla: MLADecode = "absorbed") -> Flops:
    """FLOPs of one new token at the end of `context` tokens (itself included)."""
    gemm = gemm_per_token(spec)

    def keys(attn: AttentionSpec) -> tuple[int, str, str]:
        n = visible_keys(attn, context)
        letters = "T" if attn.window is None else f"min(T, {attn.window})"
        if attn.chunked:
            letters = f"((T−1) mod {attn.window} + 1)"
        return n, letters, str(n)

    attention, text = _scores(spec, keys, mla)
    formulas = {f"gemm.{part}": text for part, text in _gemm_texts(spec, gemm).items()}
    formulas["attention_scores"] = text
    return Flops(gemm, attention, f"decode at context {context}", "exact", formulas)


def prefill_flops(
    spec: ModelSpec,
    tokens: int,
    *,
    batch: int = 1,
    causal: bool = True,
    last_logits: bool = True,
) -> Flops:
    """FLOPs of a forward pass over `batch` sequences of `tokens`.

    causal       False: every token against every key, as dense attention with a mask computes
                 (and as torch's FlopCounterMode counts), windows ignored
    last_logits  the head on each sequence's last position only
    """
    per_token = gemm_per_token(spec)
    once = {p: p == "head" and last_logits for p in PARTS}
    gemm = {p: v * (batch if once[p] else batch * tokens) for p, v in per_token.items()}
    formulas = {
        f"gemm.{part}": (f"{letters}·B", f"{numbers}·{batch}")
        if once[part]
        else (f"{letters}·B·T", f"{numbers}·{batch}·{tokens}")
        for part, (letters, numbers) in _gemm_texts(spec, per_token).items()
    }
    attention, text = _scores(spec, lambda attn: _pairs(attn, batch, tokens, causal))
    formulas["attention_scores"] = text
    return Flops(gemm, attention, f"prefill of {batch} × {tokens}", "exact", formulas)


def _pairs(attn: AttentionSpec, batch: int, tokens: int, causal: bool) -> tuple[int, str, str]:
    """Pairs of a token and a key in a whole batch: value, letters, numbers."""
    value = batch * visible_sum(attn, tokens, causal=causal)
    if not causal:
        return value, "B·T²", f"{batch}·{tokens}·{tokens}"
    w = attn.window
    if w is None or tokens <= w:
        return value, "B·T·(T+1)/2", f"{batch}·{tokens}·({tokens}+1)/2"
    if attn.chunked:
        whole, rest = divmod(tokens, w)
        letters = f"B·(⌊T/w⌋·w·(w+1)/2 + r·(r+1)/2 with w={w}, r=T mod w)"
        return value, letters, f"{batch}·({whole}·{w}·({w}+1)/2 + {rest}·({rest}+1)/2)"
    letters = f"B·(w·(w+1)/2 + (T−w)·w with w={w})"
    return value, letters, f"{batch}·({w}·({w}+1)/2 + ({tokens}−{w})·{w})"


def train_flops(
    spec: ModelSpec, workload: Workload, *, causal: bool = True, adapter_params: int = 0
) -> Flops:
    """FLOPs of one training step: forward and backward over batch × ctx tokens, all logits.

    Full: each GEMM three times (forward, gradient of its input, gradient of its weight); exact.
    LoRA and QLoRA: frozen weights need no gradient of their own, so twice; the adapters' matrices
    (`adapter_params`: those one token uses) three times. A bound: what lies below the first adapter
    needs no input gradient, at most one layer's projections when every layer has adapters.
    Attention scores: twice the forward pass again for the gradients of Q, K, V and the scores; with
    flash attention also QK^T once more, because it keeps no scores.
    Checkpointing adds a forward pass of the layers, head excepted. A bound: torch stops the
    recomputation once the last tensor kept is there, which saves down_proj where the layer ends
    with it.
    """
    training = workload.training
    tokens, batch = workload.ctx, workload.batch
    frozen = training is not None and training.method != "full"
    recompute = training is not None and training.checkpointing == "layer"
    forward = prefill_flops(spec, tokens, batch=batch, causal=causal, last_logits=False)

    def passes(part: str) -> int:
        base = 3 if part == "attention_scores" or not frozen else 2
        return base + (1 if recompute and part != "gemm.head" else 0)

    gemm = {p: v * passes(f"gemm.{p}") for p, v in forward.gemm.items()}
    formulas = {
        key: (f"{letters}·{passes(key)}", f"{_bracket(numbers)}·{passes(key)}")
        for key, (letters, numbers) in forward.formulas.items()
    }
    attention = forward.attention * passes("attention_scores")
    if workload.flash:
        again, (letters, numbers) = _scores(
            spec, lambda attn: _pairs(attn, batch, tokens, causal), only_qk=True
        )
        attention += again
        text = formulas["attention_scores"]
        formulas["attention_scores"] = (f"{text[0]} + {letters}", f"{text[1]} + {numbers}")
    times = 8 if recompute else 6
    adapter = times * adapter_params * batch * tokens if frozen else 0
    formulas["adapter"] = (
        f"{times}·adapter parameters·B·T",
        f"{times}·{adapter_params}·{batch}·{tokens}",
    )
    kind: Kind = "bound" if frozen or recompute else "exact"
    return Flops(
        gemm, attention, f"training step of {batch} × {tokens}", kind, formulas, adapter=adapter
    )


def _bracket(text: str) -> str:
    return f"({text})" if " + " in text else text


def _gemm_texts(spec: ModelSpec, gemm: Mapping[Part, int]) -> dict[Part, Text]:
    figures = {part: gemm_figure(spec, part, value) for part, value in gemm.items() if value}
    return {part: (f.formula, f.numbers) for part, f in figures.items()}


def _scores(
    spec: ModelSpec,
    pairs: Callable[[AttentionSpec], tuple[int, str, str]],
    mla: MLADecode = "expanded",
    *,
    only_qk: bool = False,
) -> tuple[int, Text]:
    """FLOPs of attention scores over the layers: 2·n_h·width·pairs, like layers together.

    pairs    of one layer: how many, in letters, in numbers
    only_qk  QK^T without PV
    """
    groups: dict[AttentionSpec, list[int]] = {}
    for layer in spec.layers:
        if layer.attention:
            groups.setdefault(layer.attention, []).append(layer.index)
    total, letters, numbers = 0, [], []
    for attn, layers in groups.items():
        n, pair_letters, pair_numbers = pairs(attn)
        if only_qk:
            flops, width, widths = 2 * attn.num_heads * attn.head_dim, "d_qk", f"{attn.head_dim}"
        elif attn.mla and mla == "absorbed":
            m = attn.mla
            flops, width = score_flops(attn, mla), "(2·r_kv + d_rope)"
            widths = f"(2·{m.kv_lora_rank} + {m.qk_rope_head_dim})"
        else:
            flops, width = score_flops(attn), "(d_qk + d_v)"
            widths = f"({attn.head_dim} + {attn.v_head_dim})"
        total += len(layers) * flops * n
        count = "L" if len(layers) == spec.num_layers else f"{len(layers)} layers"
        if count != "L":
            count += f" ({layer_label(layers)})"
        letters.append(f"{count}·2·n_h·{width}·{pair_letters}")
        numbers.append(f"{len(layers)}·2·{attn.num_heads}·{widths}·{pair_numbers}")
    return total, (" + ".join(letters) or "0", " + ".join(numbers) or "0")
