"""Parameter counts as text: "3·H·I·L" and "3·4096·14336·32", built from the rows they stand for.

Every tensor's shape is a product of letters; like products are added, like layers multiplied. The
numbers come from the same shapes as the total, so a formula cannot drift from its value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from gateup.model.spec import (
    MLP,
    AttentionSpec,
    LayerSpec,
    ModelSpec,
    MoESpec,
    TensorSpec,
)

# One product: its letters and, in the same order, their values.
Product = tuple[tuple[str, int], ...]
Poly = Counter[Product]


@dataclass(frozen=True, slots=True)
class Sum:
    """A count as text in letters and in numbers; `value` is what both come to."""

    letters: str
    numbers: str
    value: int

    @classmethod
    def of_shape(cls, spec: ModelSpec, shape: tuple[int, ...]) -> Sum:
        poly = Poly({_product(shape, _letters(spec, None)): 1})
        return cls(_text(poly, 0), _text(poly, 1), prod(shape))


def part_terms(
    spec: ModelSpec,
    parts: tuple[str, ...],
    *,
    select: Callable[[TensorSpec], bool] = lambda row: True,
    active: bool = False,
) -> Sum:
    """The parameters of `parts` (of one token's experts only, when `active`)."""
    polys: dict[int | None, Poly] = {}
    layers = {layer.index: layer for layer in spec.layers}
    for row in spec.rows:
        if row.part not in parts or not select(row):
            continue
        known = _letters(spec, None if row.layer is None else layers.get(row.layer), row)
        polys.setdefault(row.layer, Poly())[_row_product(row, known, active)] += 1
    value = sum(_value(p) for p in polys.values())
    kinds: dict[tuple[tuple[Product, int], ...], list[int]] = {}
    for index, poly in polys.items():
        if index is not None:
            kinds.setdefault(tuple(poly.items()), []).append(index)
    return _join(kinds, polys.get(None), spec.num_layers, value)


def _join(
    kinds: dict[tuple[tuple[Product, int], ...], list[int]],
    outside: Poly | None,
    num_layers: int,
    value: int,
) -> Sum:
    letters: list[str] = []
    numbers: list[str] = []
    for key, layers in kinds.items():
        poly = Poly(dict(key))
        whole = len(layers) == num_layers
        letters.append(_times(poly, 0, "L" if whole else str(len(layers))))
        numbers.append(_times(poly, 1, str(len(layers))))
    if len({_text(Poly(dict(k)), 0) for k in kinds}) == 1 and len(kinds) > 1:
        letters = ["Σ_layers (" + _text(Poly(dict(next(iter(kinds)))), 0) + ")"]
    if outside:
        letters.append(_text(outside, 0))
        numbers.append(_text(outside, 1))
    return Sum(" + ".join(letters) or "0", " + ".join(numbers) or "0", value)


def _times(poly: Poly, which: int, count: str) -> str:
    text = _text(poly, which)
    return f"({text})·{count}" if len(poly) > 1 else f"{text}·{count}"


def _text(poly: Poly, which: int) -> str:
    terms = []
    for product, count in poly.items():
        factors = [str(pair[which]) for pair in product]
        terms.append("·".join(([str(count)] if count > 1 else []) + factors))
    return " + ".join(terms)


def _value(poly: Poly) -> int:
    return sum(count * prod(v for _, v in product) for product, count in poly.items())


def _row_product(row: TensorSpec, letters: list[tuple[str, int]], active: bool) -> Product:
    shape = row.shape
    extra: list[tuple[str, int]] = []
    if row.experts:
        # stacked experts carry their number in the first axis, single ones in `copies`
        stacked = row.copies == 1 and len(shape) > 1 and shape[0] == row.experts
        if stacked:
            shape = shape[1:]
        elif row.copies != row.experts:
            return ((row.role, row.active_params if active else row.params),)
        extra.append(("k", row.active_experts) if active else ("E", row.experts))
    elif row.copies > 1:
        extra.append(("copies", row.copies))
    return tuple(extra) + _product(shape, letters)


def _product(shape: tuple[int, ...], letters: list[tuple[str, int]]) -> Product:
    """Name each axis; H goes to at most one axis when another letter has the same value."""
    out: list[tuple[str, int]] = []
    used: set[str] = set()
    for size in shape if max(shape) == 1 else [n for n in shape if n > 1]:
        names = [name for name, value in letters if value == size]
        name = next((n for n in names if n not in used), names[0] if names else str(size))
        used.add(name)
        out.append((name, size))
    order = {name: i for i, (name, _) in enumerate(letters)}
    return tuple(sorted(out, key=lambda pair: order.get(pair[0], len(order))))


def _letters(
    spec: ModelSpec, layer: LayerSpec | None, row: TensorSpec | None = None
) -> list[tuple[str, int]]:
    """Letters for the axis lengths of a row, in the order in which they are preferred."""
    out = [("H", spec.hidden_size)]
    if layer is None or row is None:
        return [("V", spec.vocab_size), *out]
    if row.part == "mlp":
        return out + _mlp_letters(layer.mlp, row.role)
    if layer.attention is None:
        return out
    letters = _attention_letters(layer.attention)
    if row.part == "norm":  # a norm over one head, also where n_kv = 1
        letters.insert(0, ("d", layer.attention.head_dim))
    # where n_h·d = H, a vector in front of the scores is as long as the heads, not as the stream
    heads_first = len(row.shape) == 1 and row.role.split(".")[0] in ("q_proj", "k_proj", "v_proj")
    return letters + out if heads_first else out + letters


def _mlp_letters(mlp: MLP | None, role: str) -> list[tuple[str, int]]:
    if mlp is None:
        return []
    if not isinstance(mlp, MoESpec):
        return [("I", mlp.intermediate_size), ("2·I", 2 * mlp.intermediate_size)]
    width = mlp.expert.intermediate_size
    out = [("I_e", width), ("2·I_e", 2 * width), ("E", mlp.num_experts)]
    if mlp.shared:
        shared = ("I_s", mlp.shared.intermediate_size)
        out.insert(0 if role.startswith("shared") else 2, shared)
    return out


def _attention_letters(attn: AttentionSpec) -> list[tuple[str, int]]:
    q, k = attn.num_heads * attn.head_dim, attn.num_kv_heads * attn.head_dim
    v, o = attn.num_kv_heads * attn.v_head_dim, attn.num_heads * attn.v_head_dim
    out = [("n_h·d", q), ("n_kv·d", k), ("n_h·d_v", o), ("n_kv·d_v", v), ("d", attn.head_dim)]
    out += [("n_h", attn.num_heads), ("(n_h·d + n_kv·d + n_kv·d_v)", q + k + v)]
    if attn.mla:
        m = attn.mla
        out += [("r_kv", m.kv_lora_rank), ("(r_kv + d_rope)", attn.kv_elements)]
        out += [("n_h·(d_nope + d_v)", attn.num_heads * (m.qk_nope_head_dim + attn.v_head_dim))]
        if m.q_lora_rank:
            out.append(("r_q", m.q_lora_rank))
    return out
