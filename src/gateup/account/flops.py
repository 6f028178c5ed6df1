"""FLOPs of decode, prefill and training; a multiply-add counts 2.

GEMM FLOPs are 2 per active matrix parameter and token: an embedding is a lookup (0), a tied head
is a GEMM (2·V·H) although it holds no parameters. Attention FLOPs are those of QK^T and PV:
2·n_heads·(d_qk + d_v) for each pair of a token and a key it sees. Elementwise work is left out.

MLA. In prefill and training each token's latent is expanded once (kv_b_proj, a matrix like any
other) and attention runs at d_qk + d_v. Decode works on the cached latent: kv_b_proj's two halves
multiply the query and the output instead, which costs the same GEMM, and attention runs at
(r_kv + d_rope) + r_kv per head and key ("absorbed"). `mla="expanded"` counts decode as prefill
does, which is the crossover's convention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateup.account.figure import Figure, Kind
from gateup.account.ledger import SHAPES, gemm_figure, share, tied_head
from gateup.account.workload import Workload
from gateup.model.spec import PARTS, AttentionSpec, ModelSpec, Part

MLADecode = Literal["absorbed", "expanded"]


@dataclass(frozen=True)
class Flops:
    """FLOPs of one step. `what` names it; `formulas` has (letters, numbers) for figures."""

    gemm: Mapping[Part, int]
    attention: int
    what: str = ""
    kind: Kind = "exact"
    formulas: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    adapter: int = 0

    @property
    def total(self) -> int:
        return sum(self.gemm.values()) + self.attention + self.adapter

    @property
    def mlp_share(self) -> float:
        """The MLP's part of all counted FLOPs, attention scores included."""
        return self.gemm.get("mlp", 0) / self.total if self.total else 0.0

    def figures(self) -> dict[str, Figure]:
        """total, attention_scores, mlp_share, and gemm.<part> for the parts that have any."""
        out = {}
        for part, value in self.gemm.items():
            if value:
                letters, numbers = self.formulas.get(part, ("", ""))
                out[f"gemm.{part}"] = Figure(value, "FLOP", self.kind, letters, numbers, SHAPES)
        letters, numbers = self.formulas.get("attention_scores", ("", ""))
        out["attention_scores"] = Figure(
            self.attention, "FLOP", self.kind, letters, numbers, SHAPES
        )
        terms = [v for v in (*self.gemm.values(), self.attention) if v]
        out["total"] = Figure(
            self.total,
            "FLOP",
            self.kind,
            " + ".join([k for k, v in self.gemm.items() if v] + ["attention scores"]),
            " + ".join(str(t) for t in terms) or "0",
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


def visible_sum(attn: AttentionSpec, tokens: int, *, causal: bool = True) -> int:
    """Pairs (token, key it sees) over a sequence of `tokens`.

    Causal: Σ_{p=1..T} min(p, w) = T(T+1)/2, or w(w+1)/2 + (T−w)·w past the window. Not causal: T²,
    the dense product with whatever mask.
    """
    if not causal:
        return tokens * tokens
    w = tokens if attn.window is None else min(attn.window, tokens)
    return w * (w + 1) // 2 + (tokens - w) * w


def decode_flops(spec: ModelSpec, context: int, *, mla: MLADecode = "absorbed") -> Flops:
    """FLOPs of one new token at the end of `context` tokens (itself included)."""
    attention = 0
    groups: dict[tuple[int, int], int] = {}
    for layer in spec.layers:
        if layer.attention:
            key = (score_flops(layer.attention, mla), layer.attention.visible(context))
            groups[key] = groups.get(key, 0) + 1
            attention += key[0] * key[1]
    gemm = gemm_per_token(spec)
    formulas: dict[str, tuple[str, str]] = dict(_gemm_formulas(spec, gemm).items())
    formulas["attention_scores"] = (
        "Σ_layers 2·n_h·(d_qk + d_v)·min(T, window)",
        _attention_numbers(groups),
    )
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
    times = {p: batch if p == "head" and last_logits else batch * tokens for p in PARTS}
    gemm = {p: v * times[p] for p, v in per_token.items()}
    attention = 0
    groups: dict[tuple[int, int], int] = {}
    for layer in spec.layers:
        if layer.attention:
            pairs = batch * visible_sum(layer.attention, tokens, causal=causal)
            key = (score_flops(layer.attention), pairs)
            groups[key] = groups.get(key, 0) + 1
            attention += key[0] * key[1]
    formulas: dict[str, tuple[str, str]] = {
        part: (
            f"({letters})·{'B' if times[part] == batch else 'B·T'}",
            f"({numbers})·{times[part]}",
        )
        for part, (letters, numbers) in _gemm_formulas(spec, per_token).items()
    }
    pairs_text = "B·Σ_{p=1..T} min(p, window)" if causal else "B·T²"
    formulas["attention_scores"] = (
        f"Σ_layers 2·n_h·(d_qk + d_v)·{pairs_text}",
        _attention_numbers(groups),
    )
    return Flops(gemm, attention, f"prefill of {batch} × {tokens}", "exact", formulas)


def train_flops(spec: ModelSpec, workload: Workload, *, adapter_params: int = 0) -> Flops:
    """FLOPs of one training step: forward and backward over batch × ctx tokens, all logits.

    Backward costs each GEMM twice more (gradient of its input and of its weight). With LoRA the
    frozen weights need the input's gradient only, and the adapters (`adapter_params`, those one
    token uses) cost 6 each; the bound counts the input gradients of the first layer too, which
    nothing needs. Attention scores: 2× forward, with flash attention 2× plus the recomputed QK^T.
    Checkpointing adds one forward pass of the layers.
    """
    training = workload.training
    tokens, batch = workload.ctx, workload.batch
    forward = prefill_flops(spec, tokens, batch=batch, last_logits=False)
    frozen = training is not None and training.method != "full"
    recompute = training is not None and training.checkpointing == "layer"
    gemm: dict[Part, int] = {}
    for part, value in forward.gemm.items():
        again = 1 if recompute and part != "head" else 0
        gemm[part] = value * ((2 if frozen else 3) + again)
    scores = forward.attention
    attention = scores * (4 if recompute else 3)
    if workload.flash:
        attention += sum(
            2 * a.num_heads * a.head_dim * batch * visible_sum(a, tokens)
            for a in (layer.attention for layer in spec.layers)
            if a
        )
    return Flops(
        gemm,
        attention,
        f"training step of {batch} × {tokens}",
        "bound" if frozen else "exact",
        adapter=(8 if recompute else 6) * adapter_params * batch * tokens,
    )


def _gemm_formulas(spec: ModelSpec, gemm: Mapping[Part, int]) -> dict[Part, tuple[str, str]]:
    out: dict[Part, tuple[str, str]] = {}
    for part, value in gemm.items():
        if value:
            figure = gemm_figure(spec, part, value)
            out[part] = (figure.formula, figure.numbers)
    return out


def _attention_numbers(groups: Mapping[tuple[int, int], int]) -> str:
    return " + ".join(f"{n}·{per}·{keys}" for (per, keys), n in groups.items()) or "0"
