"""The context T* at which attention scores cost as many FLOPs as the MLP.

Token convention: one token at context T, T* = 2·m·H·ΣI / (2·n_h·(d_qk + d_v)), where m is 3
matrices (gated) or 2 (classic) and ΣI the width a token passes through: the dense width, or k
expert widths plus the shared ones. Prefill convention: the average token of a causal prefill sees
T/2 keys, so 2·T*. Routers, projections, embedding and head are on neither side. MLA counts at
d_qk + d_v, as it trains and prefills.

A sliding window w caps what a token sees; where the cap lies below T*, attention never reaches the
MLP. The average over a causal prefill is then w − w²/(2T). Chunks of w are taken full: the chunk's
last token sees w, and over whole chunks the average is w/2.
Whole-token figures are rounded up: the first context at which attention has reached the MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, isqrt

from gateup.account.figure import Figure
from gateup.account.ledger import layer_label
from gateup.model.spec import MLP, AttentionSpec, LayerSpec, ModelSpec, MoESpec, active_width

SOURCE = "FLOPs of QK^T and PV against those of gate, up and down (elementwise work left out)"


@dataclass(frozen=True)
class CrossoverPoint:
    """T* of the layers named by `label` ("model": all of them together).

    token    exact; None: never (no attention, or windows cap it below the MLP)
    prefill  exact; where windows make it irrational, the first whole context past it
    why      the reason when one of them is None
    """

    label: str
    layers: tuple[int, ...]
    token: Fraction | None
    prefill: Fraction | None
    formula: str
    numbers: str
    why: str = ""

    def figures(self) -> dict[str, Figure]:
        """token, prefill: rounded up to whole tokens; empty where the answer is never."""
        out = {}
        if self.token is not None:
            out["token"] = self._figure(self.token, self.formula, self.numbers)
        if self.prefill is not None and "min(" in self.formula:
            formula = self.formula.replace("min(T, window)", "mean of min(p, window) over p ≤ T")
            numbers = self.numbers.replace("min(T, ", "mean(").replace("·T", "·T/2")
            out["prefill"] = self._figure(self.prefill, formula, numbers)
        elif self.prefill is not None:
            out["prefill"] = self._figure(self.prefill, f"2·{self.formula}", f"2·{self.numbers}")
        return out

    def _figure(self, value: Fraction, formula: str, numbers: str) -> Figure:
        return Figure(ceil(value), "tokens", "exact", formula, numbers, SOURCE)


@dataclass(frozen=True)
class Crossover:
    """T* for the model and for each kind of layer that has both attention and an MLP."""

    model: CrossoverPoint
    layers: tuple[CrossoverPoint, ...]


def crossover(spec: ModelSpec) -> Crossover:
    """T* in both conventions, per kind of layer and for the model."""
    kinds: dict[tuple[AttentionSpec, MLP], list[LayerSpec]] = {}
    for layer in spec.layers:
        if layer.attention and layer.mlp:
            kinds.setdefault((layer.attention, layer.mlp), []).append(layer)
    points = tuple(
        _point(spec, layer_label(x.index for x in layers), layers) for layers in kinds.values()
    )
    return Crossover(_point(spec, "model", list(spec.layers)), points)


def _mlp_flops(spec: ModelSpec, layer: LayerSpec) -> int:
    if layer.mlp is None:
        return 0
    return 2 * layer.mlp.matrices * spec.hidden_size * active_width(layer.mlp)


# Layers alike in window and chunking: (window, chunked) -> FLOPs per key and token, all together.
Slopes = dict[tuple[int | None, bool], int]


def _point(spec: ModelSpec, label: str, layers: list[LayerSpec]) -> CrossoverPoint:
    target = sum(_mlp_flops(spec, x) for x in layers)
    slopes: Slopes = {}
    for x in layers:
        if x.attention:
            key = (x.attention.window, x.attention.chunked)
            slopes[key] = slopes.get(key, 0) + 2 * x.attention.score_width
    token = _solve_token(slopes, target) if slopes and target else None
    prefill = _solve_prefill(slopes, target) if slopes and target else None
    return CrossoverPoint(
        label,
        tuple(x.index for x in layers),
        token,
        prefill,
        *_texts(spec, layers, slopes, target),
        _why_never(slopes, target, token) if prefill is None else "",
    )


def _texts(
    spec: ModelSpec, layers: list[LayerSpec], slopes: Slopes, target: int
) -> tuple[str, str]:
    """The formula in letters and in numbers."""
    if any(window for window, _ in slopes):
        terms = [
            f"{slope}·T" if window is None else f"{slope}·min(T, {window})"
            for (window, _), slope in _segments(slopes)
        ]
        letters = "Σ slope·min(T, window) = Σ 2·m·H·ΣI, slope = 2·n_h·(d_qk + d_v)"
        return letters, " + ".join(terms) + f" = {target}"
    if len({(x.attention, x.mlp) for x in layers}) > 1:
        return "Σ 2·m·H·ΣI / Σ 2·n_h·(d_qk + d_v)", f"{target} / {sum(slopes.values())}"
    attn, mlp = layers[0].attention, layers[0].mlp
    if attn is None or mlp is None:
        return "", ""
    m, width, widths = 2 * mlp.matrices, "I", str(active_width(mlp))
    if isinstance(mlp, MoESpec):
        width, widths = "k·I_e", f"{mlp.top_k}·{mlp.expert.intermediate_size}"
        if mlp.shared:
            width, widths = f"({width} + I_s)", f"({widths} + {mlp.shared.intermediate_size})"
    return (
        f"{m}·H·{width} / (2·n_h·(d_qk + d_v))",
        f"{m}·{spec.hidden_size}·{widths} / (2·{attn.num_heads}·"
        f"({attn.head_dim} + {attn.v_head_dim}))",
    )


def _why_never(slopes: Slopes, target: int, token: Fraction | None) -> str:
    if token is not None:
        return "the last token reaches it, but a prefill's average stays below its windows"
    if not target:
        return "no MLP in these layers"
    if not slopes:
        return "no attention in these layers"
    cap = max(window for window, _ in slopes if window is not None)
    most = sum(slope * window for (window, _), slope in slopes.items() if window is not None)
    return f"no token sees more than {cap} keys, which cost {most} FLOPs; the MLP costs {target}"


def _segments(slopes: Slopes) -> list[tuple[tuple[int | None, bool], int]]:
    """Windows ascending, layers without one last."""
    return sorted(slopes.items(), key=lambda x: (x[0][0] is None, x[0][0] or 0, x[0][1]))


def _solve_token(slopes: Slopes, target: int) -> Fraction | None:
    """T with Σ slope·min(T, window) = target: piecewise linear and rising."""
    free, capped = sum(slopes.values()), 0
    for (window, _), slope in _segments(slopes):
        t = Fraction(target - capped, free)
        if window is None or t <= window:
            return t
        free -= slope
        capped += slope * window
    return None


def _solve_prefill(slopes: Slopes, target: int) -> Fraction | None:
    """T with Σ slope·mean(T) = target; mean = T/2 up to the window, past it w − w²/(2T) or w/2.

    Times 2T: free·T² + (Σ slope·2w (sliding) + Σ slope·w (chunks) − 2·target)·T − Σ slope·w² = 0,
    the sums over the layers whose window T has passed. The mean rises with T, so the first segment
    that holds its own root has the answer.
    """
    free, linear, squares = sum(slopes.values()), 0, 0
    for (window, chunked), slope in _segments(slopes):
        t = _root(free, linear - 2 * target, squares)
        if window is None or (t is not None and t <= window):
            return t
        free -= slope
        linear += slope * window * (1 if chunked else 2)
        squares += 0 if chunked else slope * window * window
    return _root(free, linear - 2 * target, squares)


def _root(a: int, b: int, c: int) -> Fraction | None:
    """Positive root of a·T² + b·T − c = 0 (c ≥ 0), rounded up to a whole T when irrational."""
    if a == 0:
        return Fraction(c, b) if b > 0 and c > 0 else None
    square = b * b + 4 * a * c
    root = isqrt(square)
    if root * root == square:
        return Fraction(root - b, 2 * a)
    t = max((root - b) // (2 * a), 0)
    while a * t * t + b * t < c:
        t += 1
    return Fraction(t)
