"""Memory that a forward pass needs for a moment: MLP, attention and logits of one layer.

One layer runs at a time, so a phase's transient is the largest layer's. T counts the tokens of
one forward pass, H, I, V as everywhere. Sizes are counted from the operations that transformers
5.24's eager forward runs (benchmarks/peak_memory.py compares them with torch's live storages);
what an allocator adds on top (fragments, rounding, workspaces) is not in them: "estimate".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gateup.account.figure import Figure, Kind
from gateup.account.workload import Workload
from gateup.errors import UsageError
from gateup.model.quant.formats import FORMATS
from gateup.model.spec import MLP, AttentionSpec, ClassicFFNSpec, GatedMLPSpec, ModelSpec, MoESpec

SOURCE = (
    "operations of transformers' eager forward, within 3% of torch's live storages "
    "(benchmarks/peak_memory.py); an allocator's rounding is not in it"
)

FLOATS = ("f32", "bf16", "f16", "f64", "f8_e4m3", "f8_e5m2")


class Term(NamedTuple):
    """A summand: bytes, in letters, in numbers."""

    value: int
    formula: str
    numbers: str


def sum_of(terms: Sequence[Term], kind: Kind, source: str, scale: Term | None = None) -> Figure:
    """The terms' sum as one Figure, times `scale` where one is given; zero terms are left out."""
    terms = [t for t in terms if t.value]
    value = sum(t.value for t in terms)
    formula = " + ".join(t.formula for t in terms) or "0"
    numbers = " + ".join(t.numbers for t in terms) or "0"
    if scale is not None and terms:
        value *= scale.value
        formula = f"{scale.formula}·({formula})"
        numbers = f"{scale.numbers}·({numbers})"
    return Figure(value, "B", kind, formula, numbers, source)


def dtype_bytes(name: str, option: str) -> int:
    """Bytes of one element of a floating dtype. Raises UsageError for any other format."""
    if name.lower() not in FLOATS:
        raise UsageError(f"{option} {name!r} is not a plain dtype", expected=", ".join(FLOATS))
    return FORMATS[name.lower()].block_bytes


def prefill_tokens(workload: Workload) -> int:
    """Tokens of the largest forward pass: the whole prompt, or a chunk where the engine cuts."""
    tokens = workload.batch * workload.ctx
    if workload.engine in ("vllm", "llama.cpp"):
        return min(tokens, max(workload.ubatch, workload.batch))
    return tokens


def gated_widths(mlp: GatedMLPSpec, fused: bool = False) -> int:
    """Widths I alive at a gated MLP's peak, beside its input.

    act(gate), up and their product; a fused act⊙up reads gate and up and writes the product, so
    it is 3 as well. One gate_up tensor stays whole beside act and product: 4, fused 3. gpt-oss
    clamps and scales: gate_up (2), its gathered bias (2), clamped gate and up, gate·sigmoid,
    up + 1, product.
    """
    if fused:
        return 3
    if mlp.act == "gpt_oss":
        return 9
    return 3 if mlp.layout.form == "split" else 4


def mlp_elements(mlp: MLP, hidden: int, fused: bool = False) -> Term:
    """Elements per token alive at the MLP's peak, beside its input and the residual.

    Experts (transformers' grouped_mm): k copies of a token are gathered; then gate_up (2·I),
    act(gate) and the product are alive, or, where H is wide, the down projection's output, its
    weighted copy and that in token order. Classic: the hidden and its activation.
    """
    if isinstance(mlp, ClassicFFNSpec):
        width = mlp.intermediate_size
        return Term(2 * width, "2·I", f"2·{width}")
    if not isinstance(mlp, MoESpec):
        n, width = gated_widths(mlp, fused), mlp.intermediate_size
        return Term(n * width, f"{n}·I", f"{n}·{width}")
    k, width = mlp.top_k, mlp.expert.intermediate_size
    wide = 3 if fused else max(4, gated_widths(mlp.expert))
    routed = [
        Term(k * (hidden + wide * width), f"k·(H + {wide}·I)", f"{k}·({hidden} + {wide}·{width})"),
        Term(k * 4 * hidden, "k·4·H", f"{k}·4·{hidden}"),
    ]
    if mlp.shared:  # its output waits for the routed experts'
        n, shared = gated_widths(mlp.shared, fused), mlp.shared.intermediate_size
        routed = [
            Term(t.value + hidden, t.formula + " + H", f"{t.numbers} + {hidden}") for t in routed
        ]
        routed.append(Term(n * shared, f"{n}·I_shared", f"{n}·{shared}"))
    return max(routed, key=lambda t: t.value)


def mlp_transient(spec: ModelSpec, workload: Workload, tokens: int) -> Figure:
    """Bytes of the widest layer's MLP for one pass over `tokens`."""
    size, H = dtype_bytes(workload.compute_dtype, "--dtype"), spec.hidden_size
    tile = min(workload.tile, tokens) if workload.execution == "tiled" else tokens
    kinds = {x.mlp for x in spec.layers if x.mlp}
    fused = workload.execution == "fused"
    widest = max(
        (mlp_elements(m, H, fused) for m in kinds), key=lambda t: t.value, default=Term(0, "", "")
    )
    letter = "T" if tile == tokens else "tile"
    terms = [
        Term(
            tile * widest.value * size,
            f"{letter}·({widest.formula})·b",
            f"{tile}·({widest.numbers})·{size}",
        )
    ]
    if tile < tokens:  # the output is gathered tile by tile
        terms.append(Term(tokens * H * size, "T·H·b", f"{tokens}·{H}·{size}"))
    return sum_of(terms, "estimate", SOURCE)


def stream(spec: ModelSpec, workload: Workload, tokens: int, copies: int) -> Figure:
    """`copies` hidden states of `tokens`, the rotary tables of their positions and the positions.

    In transformers' MLP phase there are 4: the embeddings and the layer's input, which the
    model's forward holds, the residual after attention, and the normed input; 3 in attention.
    """
    size, H = dtype_bytes(workload.compute_dtype, "--dtype"), spec.hidden_size
    d = max((x.attention.head_dim for x in spec.layers if x.attention), default=0)
    positions = min(workload.ctx, tokens)
    return sum_of(
        [
            Term(copies * tokens * H * size, f"{copies}·T·H·b", f"{copies}·{tokens}·{H}·{size}"),
            Term(
                positions * (2 * d * size + 8), "ctx·(2·d·b + 8)", f"{positions}·(2·{d}·{size} + 8)"
            ),
        ],
        "estimate",
        SOURCE,
    )


def attention_elements(a: AttentionSpec) -> Term:
    """Elements per token at attention's peak, scores aside: while q (or k) is rotated, three
    temporaries of its size stand beside q, k and v; later the rotated ones and the output.
    """
    q, k = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    v, out = a.num_kv_heads * a.v_head_dim, a.num_heads * a.v_head_dim
    return max(
        Term(4 * q + k + v, "4·q + k + v", f"4·{q} + {k} + {v}"),
        Term(2 * q + 4 * k + v, "2·q + 4·k + v", f"2·{q} + 4·{k} + {v}"),
        Term(q + k + v + out, "q + k + v + out", f"{q} + {k} + {v} + {out}"),
        key=lambda t: t.value,
    )


def score_bytes(size: int) -> int:
    """Bytes per score at the peak of eager softmax: scores, their fp32 copy, its softmax."""
    return 8 if size >= 4 else size + 8


def attention_transient(
    spec: ModelSpec, workload: Workload, tokens: int, keys: int | None = None
) -> Figure:
    """Bytes of the widest layer's attention; without flash, every query's scores too, beside q
    and the keys and values repeated to all heads.
    """
    size = dtype_bytes(workload.compute_dtype, "--dtype")
    kinds: Iterable[AttentionSpec] = {x.attention for x in spec.layers if x.attention}
    keys = workload.ctx if keys is None else keys
    normed = size < 4 and any(r.role == "q_norm" for r in spec.rows)
    choices = [Figure(0, "B", "estimate", "0", "0", SOURCE)]
    for a in kinds:
        e = attention_elements(a)
        flat = Term(tokens * e.value * size, f"T·({e.formula})·b", f"{tokens}·({e.numbers})·{size}")
        choices.append(sum_of([flat], "estimate", SOURCE))
        if normed:  # a norm of q holds its fp32 copy and that one's square or scaled copy
            n = a.num_heads * a.head_dim
            term = Term(tokens * n * (size + 8), "T·q·(b + 8)", f"{tokens}·{n}·({size} + 8)")
            choices.append(sum_of([term], "estimate", SOURCE))
        if workload.flash:
            continue
        h, c = a.num_heads, score_bytes(size)
        q, k, v = h * a.head_dim, a.num_kv_heads * a.head_dim, h * a.v_head_dim
        rest = 2 * q + 2 * k + v
        eager = [
            Term(tokens * h * keys * c, f"T·heads·keys·{c}", f"{tokens}·{h}·{keys}·{c}"),
            Term(tokens * keys * size, "T·keys·b", f"{tokens}·{keys}·{size}"),  # the mask
            Term(
                tokens * rest * size,
                "T·(2·q + 2·k + v_heads)·b",
                f"{tokens}·(2·{q} + 2·{k} + {v})·{size}",
            ),
        ]
        choices.append(sum_of(eager, "estimate", SOURCE))
    return max(choices, key=lambda f: f.value)


def held_scores(spec: ModelSpec, workload: Workload, tokens: int) -> Figure:
    """Eager attention returns its weights, which the layer holds while the MLP runs."""
    size = dtype_bytes(workload.compute_dtype, "--dtype")
    heads = max((x.attention.num_heads for x in spec.layers if x.attention), default=0)
    term = Term(
        tokens * heads * workload.ctx * size,
        "T·heads·ctx·b",
        f"{tokens}·{heads}·{workload.ctx}·{size}",
    )
    return sum_of([term], "estimate", SOURCE)


def logits_transient(spec: ModelSpec, workload: Workload, tokens: int) -> Figure:
    """Logits of the last position of each sequence, or of all `tokens`, and the fp32 copy of the
    last that sampling reads.
    """
    size, V = dtype_bytes(workload.compute_dtype, "--dtype"), spec.vocab_size
    B = workload.batch
    rows, name = (B, "batch") if workload.last_logits else (max(tokens, B), "T")
    return sum_of(
        [
            Term(rows * V * size, f"{name}·V·b", f"{rows}·{V}·{size}"),
            Term(B * V * 4, "batch·V·4", f"{B}·{V}·4"),
        ],
        "estimate",
        SOURCE,
    )
