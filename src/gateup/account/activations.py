"""Memory that a forward pass needs for a moment: MLP, attention and logits of one layer.

One layer runs at a time, so a phase's transient is the largest layer's. T counts the tokens of
one forward pass, H, I, V as everywhere. Sizes are counted from the operations each framework runs;
what an allocator adds on top (fragments, rounding) is not in them, hence "estimate".
"""

from __future__ import annotations

from collections.abc import Iterable

from gateup.account.figure import Figure
from gateup.account.workload import Workload
from gateup.errors import UsageError
from gateup.model.quant.formats import FORMATS
from gateup.model.spec import MLP, AttentionSpec, ClassicFFNSpec, ModelSpec, MoESpec

SOURCE = "counted from the operations of transformers' eager forward"


def dtype_bytes(name: str, option: str) -> int:
    """Bytes of one element of a plain dtype. Raises UsageError for block formats."""
    fmt = FORMATS.get(name.lower())
    if fmt is None or fmt.block_size != 1:
        plain = [f.name for f in FORMATS.values() if f.block_size == 1 and f.name[0] in "fb"]
        raise UsageError(f"{option} {name!r} is not a plain dtype", expected=", ".join(plain))
    return fmt.block_bytes


def prefill_tokens(workload: Workload) -> int:
    """Tokens of the largest forward pass: the whole prompt, or a chunk where the engine cuts."""
    tokens = workload.batch * workload.ctx
    if workload.engine in ("vllm", "llama.cpp"):
        return min(tokens, max(workload.ubatch, workload.batch))
    return tokens


def mlp_elements(mlp: MLP, hidden: int) -> int:
    """Elements per token alive at the MLP's peak, beside its input and the residual.

    Dense gated: act(gate), up and their product, 3·I (eager and fused alike: a fused act⊙up reads
    gate and up and writes the product). Classic: the hidden and its activation, 2·I. Experts:
    for k copies of each token gate_up, act(gate) and the product, 4·I, and the gathered input.
    """
    if isinstance(mlp, ClassicFFNSpec):
        return 2 * mlp.intermediate_size
    if isinstance(mlp, MoESpec):
        shared = 3 * mlp.shared.intermediate_size if mlp.shared else 0
        return max(mlp.top_k * (4 * mlp.expert.intermediate_size + hidden) + hidden, shared)
    return 3 * mlp.intermediate_size


def mlp_transient(spec: ModelSpec, workload: Workload, tokens: int) -> Figure:
    """Bytes of the widest layer's MLP for one pass over `tokens`."""
    size, H = dtype_bytes(workload.compute_dtype, "--dtype"), spec.hidden_size
    tile = min(workload.tile, tokens) if workload.execution == "tiled" else tokens
    widest = max((mlp_elements(x.mlp, H) for x in spec.layers if x.mlp), default=0)
    output = tokens * H if tile < tokens else 0
    moe = any(isinstance(x.mlp, MoESpec) for x in spec.layers)
    return Figure(
        (tile * widest + output) * size,
        "bytes",
        "estimate",
        ("tile" if output else "T")
        + ("·(k·(4·I + H) + H)·bytes" if moe else "·3·I·bytes")
        + (" + T·H·bytes" if output else ""),
        f"{tile}·{widest}·{size}" + (f" + {tokens}·{H}·{size}" if output else ""),
        SOURCE,
    )


def stream(spec: ModelSpec, workload: Workload, tokens: int) -> Figure:
    """The residual stream and the sublayer's normed input: 2·H per token."""
    size, H = dtype_bytes(workload.compute_dtype, "--dtype"), spec.hidden_size
    return Figure(
        2 * tokens * H * size,
        "bytes",
        "estimate",
        "T·2·H·bytes",
        f"{tokens}·2·{H}·{size}",
        SOURCE,
    )


def attention_elements(attention: AttentionSpec) -> int:
    """Elements per token at attention's peak, scores aside: q, k, v, rotated q and k, output."""
    q = attention.num_heads * attention.head_dim
    k = attention.num_kv_heads * attention.head_dim
    v = attention.num_kv_heads * attention.v_head_dim
    out = attention.num_heads * attention.v_head_dim
    return 2 * (q + k) + v + out


def attention_transient(
    spec: ModelSpec, workload: Workload, tokens: int, keys: int | None = None
) -> Figure:
    """Bytes of the widest layer's attention; without flash, scores of every query and key too."""
    size = dtype_bytes(workload.compute_dtype, "--dtype")
    kinds: Iterable[AttentionSpec] = {x.attention for x in spec.layers if x.attention}
    keys = workload.ctx if keys is None else keys
    best, text = 0, ("T·elements·bytes", f"{tokens}·0·{size}")
    for a in kinds:
        value = tokens * attention_elements(a) * size
        formula = "T·(2·(q + k) + v + out)·bytes"
        numbers = f"{tokens}·{attention_elements(a)}·{size}"
        if not workload.flash:
            value += tokens * a.num_heads * keys * (size + 4)
            formula += " + T·heads·keys·(bytes + 4)"
            numbers += f" + {tokens}·{a.num_heads}·{keys}·({size} + 4)"
        if value > best:
            best, text = value, (formula, numbers)
    return Figure(best, "bytes", "estimate", *text, SOURCE)


def logits_transient(spec: ModelSpec, workload: Workload, tokens: int) -> Figure:
    """Logits of the last position of each sequence, or of all `tokens`, and the fp32 copy of the
    last that sampling reads.
    """
    size, V = dtype_bytes(workload.compute_dtype, "--dtype"), spec.vocab_size
    rows = workload.batch if workload.last_logits else max(tokens, workload.batch)
    return Figure(
        (rows * size + workload.batch * 4) * V,
        "bytes",
        "estimate",
        "(rows·bytes + batch·4)·V",
        f"({rows}·{size} + {workload.batch}·4)·{V}",
        SOURCE,
    )
