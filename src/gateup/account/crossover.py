"""The context T* at which attention scores cost as many FLOPs as the MLP.

Token convention: one token at context T, T* = 2·m·H·ΣI / (2·n_h·(d_qk + d_v)), where m is 3
matrices (gated) or 2 (classic) and ΣI the width a token passes through: the dense width, or k
expert widths plus the shared ones. Prefill convention: the average token of a causal prefill sees
T/2 keys, so 2·T*. Routers, projections, embedding and head are on neither side. MLA counts at
d_qk + d_v, as it trains and prefills.

A window caps what a token sees; where the cap lies below T*, attention never reaches the MLP.
Whole-token figures are rounded up: the first context at which attention has reached the MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, isqrt

from gateup.account.figure import Figure
from gateup.account.ledger import layer_label
from gateup.model.spec import AttentionSpec, LayerSpec, ModelSpec, active_width

SOURCE = "FLOPs of QK^T and PV against those of gate, up and down (elementwise work left out)"


@dataclass(frozen=True)
class CrossoverPoint:
    """T* of the layers named by `label` ("model": all of them together).

    token    exact; None: never (no attention, or windows cap it below the MLP)
    prefill  exact; where windows make it irrational, the first whole context past it
    why      the reason when `token` is None
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
        for key, value in (("token", self.token), ("prefill", self.prefill)):
            if value is not None:
                out[key] = Figure(
                    ceil(value), "tokens", "exact", self.formula, self.numbers, SOURCE
                )
        return out


@dataclass(frozen=True)
class Crossover:
    """T* for the model and for each kind of layer that has both attention and an MLP."""

    model: CrossoverPoint
    layers: tuple[CrossoverPoint, ...]


def crossover(spec: ModelSpec) -> Crossover:
    """T* in both conventions, per kind of layer and for the model."""
    kinds: dict[tuple[AttentionSpec, int], list[LayerSpec]] = {}
    for layer in spec.layers:
        if layer.attention and layer.mlp:
            key = (layer.attention, _mlp_flops(spec, layer))
            kinds.setdefault(key, []).append(layer)
    points = tuple(
        _point(spec, layer_label(x.index for x in layers), layers) for layers in kinds.values()
    )
    return Crossover(_point(spec, "model", list(spec.layers)), points)


def _mlp_flops(spec: ModelSpec, layer: LayerSpec) -> int:
    if layer.mlp is None:
        return 0
    return 2 * layer.mlp.matrices * spec.hidden_size * active_width(layer.mlp)


def _point(spec: ModelSpec, label: str, layers: list[LayerSpec]) -> CrossoverPoint:
    target = sum(_mlp_flops(spec, x) for x in layers)
    slopes: dict[int | None, int] = {}
    for x in layers:
        if x.attention:
            w = x.attention.window
            slopes[w] = slopes.get(w, 0) + 2 * x.attention.score_width
    numbered = tuple(x.index for x in layers)
    formula = "Σ 2·m·H·ΣI / Σ 2·n_h·(d_qk + d_v)"
    numbers = f"{target} / {sum(slopes.values())}"
    why = ""
    token = _solve_token(slopes, target)
    prefill = _solve_prefill(slopes, target)
    if not slopes:
        why = "no attention in these layers"
    elif token is None:
        cap = max(w for w in slopes if w is not None)
        why = f"every layer's window (at most {cap} keys) keeps attention below the MLP"
    return CrossoverPoint(label, numbered, token, prefill, formula, numbers, why)


def _segments(slopes: dict[int | None, int]) -> list[tuple[int | None, int]]:
    """Windows ascending, layers without one last."""
    return sorted(slopes.items(), key=lambda x: (x[0] is None, x[0] or 0))


def _solve_token(slopes: dict[int | None, int], target: int) -> Fraction | None:
    """T with Σ slope·min(T, window) = target: piecewise linear and rising."""
    free, capped = sum(slopes.values()), 0
    for window, slope in _segments(slopes):
        t = Fraction(target - capped, free)
        if window is None or t <= window:
            return t
        free -= slope
        capped += slope * window
    return None


def _solve_prefill(slopes: dict[int | None, int], target: int) -> Fraction | None:
    """T with Σ slope·mean(T, window) = target, mean = T/2, or window − window²/(2T) past it.

    Times 2T: free·T² + 2·(Σ slope·w − target)·T − Σ slope·w² = 0 over the capped layers.
    """
    free, capped, squares = sum(slopes.values()), 0, 0
    for window, slope in _segments(slopes):
        t = _root(free, capped - target, squares)
        if t is not None and (window is None or t <= window):
            return t
        if window is None:
            return t
        free -= slope
        capped += slope * window
        squares += slope * window * window
    return _root(free, capped - target, squares) if squares else None


def _root(a: int, half_b: int, c: int) -> Fraction | None:
    """Positive root of a·T² + 2·half_b·T − c = 0, rounded up to a whole T when irrational."""
    if a == 0:
        return Fraction(c, 2 * half_b) if half_b > 0 else None
    square = half_b * half_b + a * c
    root = isqrt(square)
    if root * root == square:
        return Fraction(root - half_b, a)
    t = max((root - half_b) // a, 0)
    while a * t * t + 2 * half_b * t < c:
        t += 1
    return Fraction(t)
