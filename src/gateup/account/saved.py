"""What autograd keeps for the backward pass, per token and layer.

b is the compute dtype's bytes; formulas derived tensor by tensor from
transformers 5.24's Llama layer under sdpa and held against `saved_tensors_hooks`:

  MLP        hf x, gate, act(gate), up, product: b·(H + 4·I); all: b·(H + 3·I);
             gate_up: b·(H + 2·I); input: b·H. With frozen weights neither x nor the product is
             kept: 3·I, 2·I, 2·I; "input" keeps x.
  norm       4·w for the fp32 copy of its input and 4 for 1/rms, and b·w if its weight trains
  attention  rotated q and k, v, output: b·(q + k + v + out), 4·heads for the softmax statistics,
             x if the projections train
  LoRA       fp32 adapters: 4·in for the cast input and 4·r for A's output, each adapted matrix

In bf16 the MLP of a Llama-3-8B layer keeps 2·H + 8·I = 122,880 bytes a token.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateup.account.activations import Term, dtype_bytes
from gateup.account.lora import AdapterRow
from gateup.account.parallel import SPLITS, Rank
from gateup.account.workload import Save, Training, Workload
from gateup.model.quant.formats import FORMATS, StoredTensor
from gateup.model.spec import (
    AttentionSpec,
    ClassicFFNSpec,
    GatedMLPSpec,
    LayerSpec,
    MoESpec,
    TensorSpec,
)

SOURCE = (
    "tensor by tensor; equal to torch's saved_tensors_hooks on transformers 5.24's Llama, Qwen and "
    "Phi-3 models (benchmarks/saved_bytes.py)"
)

# Widths I that the MLP saves by mode, when its weights train and when they are frozen.
SAVED = {"hf": (4, 3), "all": (3, 2), "gate_up": (2, 2), "input": (0, 0)}
# gpt-oss's eager clamp, sigmoid and offset keep more: gate_up (2), clamped gate (1), sigmoid,
# gate·sigmoid, up + 1, and the product if down trains.
SAVED_GPT_OSS = (7, 6)


class Precision:
    """Byte sizes that the formulas share.

    compute   of activations
    stream    of hidden states between layers: fp32 under autocast from fp32 weights
    cast      fp32 weights are cast for compute, and so are inputs, once for each linear
    trained   the model's own weights train
    """

    def __init__(self, stored: Sequence[StoredTensor], workload: Workload, plan: Training) -> None:
        self.compute = dtype_bytes(workload.compute_dtype, "--dtype")
        plain = [t for t in stored if t.row is not None and t.row.matmul and is_plain(t.type)]
        self.weights = max((FORMATS[t.type].block_bytes for t in plain), default=self.compute)
        self.cast = plan.autocast and self.weights > self.compute
        self.stream = self.weights if self.cast else self.compute
        self.trained = plan.method == "full"
        self.adapter = 0 if self.trained else dtype_bytes(plan.lora.dtype, "LoRA dtype")
        # Under autocast the adapters compute in the low dtype; else in their own.
        self.lora = self.compute if plan.autocast else self.adapter
        self.lora_copies = self.trained or self.adapter != self.compute


def is_plain(type_name: str) -> bool:
    return type_name in FORMATS and FORMATS[type_name].block_size == 1


def saved_gated(mlp: GatedMLPSpec, save: Save, trained: bool, b: int) -> Term:
    """Bytes per token of a gated MLP's own intermediates, its input aside."""
    n = SAVED[save][0 if trained else 1]
    if save == "hf" and mlp.act == "gpt_oss":
        n = SAVED_GPT_OSS[0 if trained else 1]
    elif save == "hf" and mlp.act == "relu":
        n -= 1  # ReLU's backward reads its output
    width = mlp.intermediate_size
    return Term(n * width * b, f"{n}·I·b", f"{n}·{width}·{b}")


def saved_mlp(
    layer: LayerSpec, hidden: int, save: Save, p: Precision, *, fp32_router: bool = False
) -> list[Term]:
    """Bytes per token that a layer's MLP keeps for backward.

    fp32_router  the router casts its input (DeepSeek)
    """
    mlp, b = layer.mlp, p.compute
    if mlp is None:
        return []
    terms: list[Term] = []
    if p.trained or save == "input":
        # Eager linears cast an fp32 input one by one: gate's and up's copies.
        copies = 2 if p.cast and save == "hf" and isinstance(mlp, GatedMLPSpec) else 1
        x = f"{copies}·" if copies > 1 else ""
        terms.append(Term(copies * hidden * b, f"{x}H·b", f"{x}{hidden}·{b}"))
    if isinstance(mlp, ClassicFFNSpec):
        n = 0 if save == "input" else 2 if p.trained and save in ("hf", "all") else 1
        width = mlp.intermediate_size
        terms.append(Term(n * width * b, f"{n}·I·b", f"{n}·{width}·{b}"))
    elif isinstance(mlp, GatedMLPSpec):
        terms.append(saved_gated(mlp, save, p.trained, b))
    else:
        terms += _saved_moe(mlp, hidden, save, p)
        if fp32_router and p.trained:
            terms.append(Term(4 * hidden, "4·H", f"4·{hidden}"))
    return terms


def _saved_moe(mlp: MoESpec, hidden: int, save: Save, p: Precision) -> list[Term]:
    """k copies: gathered input (if weights train), intermediates, the output that the routing
    weight scales; the router's softmax and permutations; the shared expert.
    """
    k, b, E = mlp.top_k, p.compute, mlp.num_experts
    inner = saved_gated(mlp.expert, save, p.trained, b)
    terms = [Term(k * inner.value, f"k·{inner.formula}", f"{k}·{inner.numbers}")]
    rows = {"hf": 2 if p.trained else 1, "input": 0}.get(save, 1)
    terms.append(Term(k * rows * hidden * b, f"k·{rows}·H·b", f"{k}·{rows}·{hidden}·{b}"))
    terms.append(Term(4 * E + k * (32 + b), "4·E + k·(32 + b)", f"4·{E} + {k}·(32 + {b})"))
    if mlp.shared:
        shared = saved_gated(mlp.shared, save, p.trained, b)
        terms.append(Term(shared.value, f"{shared.formula} (shared)", shared.numbers))
    if mlp.shared_gate:
        terms.append(Term(hidden * b + b, "(H + 1)·b (gated)", f"({hidden} + 1)·{b}"))
    return terms


def saved_attention(
    layer: LayerSpec, rows: Sequence[TensorSpec], workload: Workload, p: Precision
) -> list[Term]:
    """Bytes per token that attention keeps; `rows` are the layer's."""
    a, b = layer.attention, p.compute
    if a is None:
        return []
    fused = any(r.role == "qkv_proj" for r in rows)
    terms = _saved_scores(a, workload, b, fused)
    if (fused or a.mla) and p.trained:
        # q made by concatenation is head-major, so o_proj's input is a copy of the output.
        out = a.num_heads * a.v_head_dim
        terms.append(Term(out * b, "out·b", f"{out}·{b}"))
    if p.trained:
        x = 0
        seen: set[str] = set()
        for row in rows:
            if row.part != "attention" or not row.matmul or SPLITS.get(row.role) == "attention_row":
                continue  # o_proj's input is the output that attention keeps
            source = input_of(row.role)
            if p.cast or source not in seen:
                x += row.shape[-1]
            seen.add(source)
        terms.append(Term(x * b, "x·b", f"{x}·{b}"))
    return terms


def _saved_scores(a: AttentionSpec, workload: Workload, b: int, fused: bool) -> list[Term]:
    """v is a view: of one qkv (or MLA's expanded kv) tensor, it keeps the whole."""
    h, q, out = a.num_heads, a.num_heads * a.head_dim, a.num_heads * a.v_head_dim
    k, v = a.num_kv_heads * a.head_dim, a.num_kv_heads * a.v_head_dim
    if fused:
        v += q + k
    elif a.mla:
        v += h * a.mla.qk_nope_head_dim
    if workload.flash:
        return [
            Term((q + k + v + out) * b, "(q + k + v + out)·b", f"({q} + {k} + {v} + {out})·{b}"),
            Term(4 * h, "4·heads", f"4·{h}"),
        ]
    per = 4 if b >= 4 else 4 + b  # softmax in fp32, and its copy in the compute dtype
    keys = workload.ctx
    return [
        Term(2 * (q + out) * b, "2·(q + out)·b", f"2·({q} + {out})·{b}"),
        Term(h * keys * per, f"heads·ctx·{per}", f"{h}·{keys}·{per}"),
    ]


def saved_norms(layer: LayerSpec, rows: Sequence[TensorSpec], p: Precision) -> Term:
    """Bytes per token of a layer's norms: 4·w + 4 each, and b·w where the weight trains."""
    widths = groups = 0
    a = layer.attention
    for row in rows:
        if row.part != "norm" or row.role.endswith(".bias"):
            continue
        w, n = row.shape[0], 1
        if a is not None and row.role in ("q_norm", "k_norm") and w == a.head_dim:
            n = a.num_heads if row.role == "q_norm" else a.num_kv_heads
        widths, groups = widths + n * w, groups + n
    per = 4 + (p.stream if p.trained else 0)
    return Term(widths * per + 4 * groups, f"Σw·{per} + 4·norms", f"{widths}·{per} + 4·{groups}")


def saved_lora(adapters: Sequence[AdapterRow], rank: Rank, p: Precision) -> Term:
    """Bytes per token that a layer's adapters keep: their input, cast, and A's output.

    Adapters of the compute dtype share the linear's own input, once for each distinct one (what o
    reads, attention keeps). Adapters on stacked parameters (router, experts) are added to the
    weight, whose product then keeps its input and, for experts, down's.
    """
    inputs = ranks = whole = 0
    seen: set[str] = set()
    for a in adapters:
        if a.row.experts:
            k = a.row.active_experts
            whole += k * a.inp
            continue
        source = input_of(a.role)
        if a.role == "router":
            whole += a.inp
            continue
        kept = SPLITS.get(a.role) == "attention_row" or source in seen
        if p.lora_copies or not kept:
            inputs += _local_input(a, rank)
        seen.add(source)
        ranks += a.rank
    e, b = p.lora, p.compute
    text = (f"(Σin + Σr)·{e}", f"({inputs} + {ranks})·{e}")
    if not whole:
        return Term((inputs + ranks) * e, *text)
    return Term(
        (inputs + ranks) * e + whole * b,
        text[0] + " + Σin_experts·b",
        text[1] + f" + {whole}·{b}",
    )


def merged_weights(adapters: Sequence[AdapterRow], rank: Rank, p: Precision) -> int:
    """Bytes of one layer's stacked parameters with their adapters added, kept for backward, and of
    the experts' A and B in the compute dtype.
    """
    total = 0
    for a in adapters:
        if a.row.experts or a.role == "router":
            per_copy = a.inp * a.out + (a.rank * (a.inp + a.out) if a.row.experts else 0)
            total += int(rank.share(a.row) * a.copies * per_copy) * p.compute
    return total


def input_of(role: str) -> str:
    """A name for the tensor that a linear reads; linears of one name share it."""
    head, _, leaf = role.rpartition(".")
    kind = SPLITS.get(leaf, "whole")
    if kind in ("row", "attention_row") or leaf in ("q_b_proj", "kv_b_proj"):
        return role
    return (
        "attention" if kind in ("heads", "kv", "qkv") or leaf.endswith("a_proj") else f"mlp.{head}"
    )


def _local_input(a: AdapterRow, rank: Rank) -> int:
    kind = SPLITS.get(a.role.rpartition(".")[2])
    return a.inp // rank.parallel.tp if kind in ("row", "attention_row") else a.inp
