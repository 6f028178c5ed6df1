"""Adapters against their base: the right model, targets that exist, what they leave out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateup.account.lora import CONVERTED, adapter_nbytes, adapter_rows
from gateup.account.workload import LoRA
from gateup.checks.adapter_layer_rules import replicated
from gateup.checks.adapter_parts import Pair, pairs_of
from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding
from gateup.checks.lora_targets import fused_in, leaf_of, shown, split_in
from gateup.checks.rule import rule
from gateup.errors import UsageError
from gateup.files.adapter import Adapter
from gateup.files.header import listed, many
from gateup.model import presets
from gateup.model.spec import ModelSpec

# Adam's two moments, the gradient and the parameter itself, in fp32 as PEFT keeps adapters.
BYTES_TRAINED = 16
API = "gateup.model.lora_layout"


def _adapter(context: Context) -> tuple[Adapter, tuple[Pair, ...]]:
    assert context.adapter is not None
    return context.adapter, pairs_of(context.spec, context.adapter, replicated(context))


def _refused(spec: ModelSpec, pairs: Iterable[Pair]) -> list[Pair]:
    """Pairs that have no place in the base, those aside that only its fusing keeps out."""
    return [
        p
        for p in pairs
        if not p.fits(spec)
        and not (p.row is None and (fused_in(spec, p.leaf) or split_in(spec, p.leaf)))
    ]


@rule("adapter.base", "The adapter belongs to this base model", needs=["adapter"])
def base(context: Context) -> Iterable[Finding]:
    """A LoRA adapter is pairs of matrices, A [r, in] and B [out, r], one pair for each module it
    changes. Their outer sizes are those of the base's weights, so they tell which model the
    adapter was trained on. Where they do not meet, loading fails with a size mismatch, or modules
    the base does not have are dropped.

    Example: an adapter of Llama-3-8B on Llama-2-7B.

        model.layers.0.mlp.gate_proj: A reads 4096, B writes 14336
        expected 4096 and 11008: gate_proj.weight is [11008, 4096]
        of the models known here, llama-3-8b has all these shapes

    Shapes that fit prove nothing: Mistral-7B and Llama-3-8B have the same width, heads and layers.
    So where adapter_config.json names a base that is known and is another model, that is said too.
    """
    adapter, pairs = _adapter(context)
    spec, wrong = context.spec, _refused(context.spec, pairs)
    if not wrong:
        yield from _other_name(context, adapter)
        return
    fitting = _presets_for(pairs, spec)
    evidence = tuple(_shape_evidence(context, p) for p in wrong)
    says = f"adapter_config.json names {shown(adapter.base)}" if adapter.base else ""
    known = f"of the models known here, {listed(fitting, 4)} {_have(fitting)} all its shapes"
    yield Finding(
        "adapter.base",
        "error",
        f"{len(wrong)} of {many(len(pairs), 'adapted module')} do not fit {spec.name}",
        evidence,
        "The adapter was trained on another base: "
        + ("; ".join(filter(None, [says, known if fitting else _sizes(pairs)]))),
        "Load it on its own base"
        + (f": {fitting[0]}" if fitting else f": {shown(adapter.base)}" if adapter.base else "")
        + ". An adapter cannot be moved to a model of other shapes.",
        {"wrong": len(wrong), "modules": len(pairs), "base": fitting[0] if fitting else ""},
    )


def _have(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _shape_evidence(context: Context, p: Pair) -> Evidence:
    spec = context.spec
    found = f"A reads {p.inp}, B writes {p.out}"
    if p.row is None:
        layer = p.layer
        if layer is not None and layer >= spec.num_layers:
            why = f"layers 0 to {spec.num_layers - 1}"
        else:
            why = "a module of the base"
        return Evidence(p.module, found, why, context.source("config"))
    wanted = p.wanted(spec)
    assert wanted is not None
    return Evidence(
        p.module,
        found,
        f"A reads {wanted[0]}, B writes {wanted[1]}",
        f"{p.row.name} is {list(p.row.shape)}",
    )


def _sizes(pairs: Iterable[Pair]) -> str:
    """What the pairs say about the model they were trained on."""
    sizes: dict[str, str] = {}
    top = -1
    for p in pairs:
        top = max(top, -1 if p.layer is None else p.layer)
        if p.leaf == "gate_proj" and p.inp and p.out:
            sizes["hidden_size"], sizes["intermediate_size"] = str(p.inp), str(p.out)
        elif p.leaf == "q_proj" and p.inp:
            sizes["hidden_size"] = str(p.inp)
    if top >= 0:
        sizes["num_hidden_layers"] = f"{top + 1} or more"
    said = ", ".join(f"{k} {v}" for k, v in sizes.items())
    return f"one with {said}" if said else "its module names are not this model's"


def _presets_for(pairs: Sequence[Pair], spec: ModelSpec) -> list[str]:
    """Presets in which every pair has its place, those with as many layers as are adapted first."""
    dims = {d for p in pairs for d in (p.inp, p.out)}
    top = max((p.layer for p in pairs if p.layer is not None), default=-1)
    out: list[tuple[bool, str]] = []
    for name, preset in presets.PRESETS.items():
        hidden = preset.config.get("hidden_size")
        if hidden is not None and hidden not in dims:
            continue
        other = presets.spec(name)
        if other.num_layers <= top or name == spec.name:
            continue
        if all(_again(other, p) for p in pairs):
            out.append((other.num_layers != top + 1, name))
    return [name for _, name in sorted(out, key=lambda x: x[0])]


def _again(spec: ModelSpec, p: Pair) -> bool:
    row = next((r for r in spec.rows if r.name == p.module + ".weight"), None)
    if row is None or len(row.shape) != 2:
        return False
    return Pair(p.module, p.a, p.b, row, p.experts, p.embedding).fits(spec)


def _other_name(context: Context, adapter: Adapter) -> Iterable[Finding]:
    """The base that the adapter names is known, and this is another model of the same shapes."""
    named = presets.find(adapter.base) if adapter.base else None
    if named is None:
        return
    spec, other = context.spec, presets.spec(named.name)
    mine = presets.find(spec.name)
    same = [(r.name, r.shape) for r in spec.rows] == [(r.name, r.shape) for r in other.rows]
    differs = _differences(spec, other)
    # A base of another name is a fine-tune, which may have added tokens, unless more differs.
    tuned = mine is None and {k for k, _, _ in differs} <= {"vocab_size"}
    if mine is named or (tuned and (same or differs)):
        return
    yield Finding(
        "adapter.base",
        "warning",
        f"the adapter was trained on {named.name}, this is {spec.name}: the shapes fit, the "
        "weights are others",
        tuple(Evidence(k, str(a), str(b), f"preset {named.name}") for k, a, b in differs)
        or (
            Evidence(
                "base_model_name_or_path", shown(adapter.base or ""), spec.name, "the model opened"
            ),
        ),
        "Modules of the same shapes take the adapter without complaint; what it adds was learnt "
        "beside other weights, so the output is worse or garbage.",
        f"Open it on {named.hub_id}.",
        {"named": named.name},
    )


def _differences(spec: ModelSpec, other: ModelSpec) -> list[tuple[str, object, object]]:
    keys = ("family", "num_layers", "hidden_size", "vocab_size", "tie_word_embeddings")
    pairs = [(k, getattr(spec, k), getattr(other, k)) for k in keys]
    theta = (spec.config.get("rope_theta"), other.config.get("rope_theta"))
    if None not in theta:
        pairs.append(("rope_theta", *theta))
    return [(k, a, b) for k, a, b in pairs if a != b]


@rule("adapter.fused", "Fused and split projections meet", needs=["adapter"])
def fused(context: Context) -> Iterable[Finding]:
    """Phi-3 stores gate and up as one weight, gate_up_proj [2I, H], and q, k, v as qkv_proj; most
    others keep them apart. An adapter trained on one form has no module to go to in the other.
    It converts exactly, because output rows belong to B alone:

        fused to split   A is copied, B's rows are cut: gate 0 to I - 1, up I to 2I - 1;
                         rank, alpha and scale stay
        split to fused   A's stacked [2r, H], B's block-diagonal [2I, 2r]; rank 2r needs alpha
                         doubled (with rsLoRA: times √2) to keep alpha/r

    Example: Phi-3-mini, H = 3072, I = 8192. A [r, 3072] serves both, gate's B is rows 0 to 8191 of
    [16384, r], up's rows 8192 to 16383. On the native Phi-3 a target "gate_proj" matches nothing.

    In Python, with numpy or torch arrays:

        from gateup.model.layout import GateUpLayout
        from gateup.model.lora_layout import split_gate_up, fuse_gate_up, fused_alpha
        (a, b_gate), (a, b_up) = split_gate_up(a, b, GateUpLayout(form="concat"))

    `split_rows` and `fuse_rows` of the same module do it for qkv_proj.
    """
    adapter, pairs = _adapter(context)
    spec = context.spec
    homeless = [p for p in pairs if p.row is None]
    for name in dict.fromkeys(p.leaf for p in homeless):
        mine = [p for p in homeless if p.leaf == name]
        parts = split_in(spec, name)
        if parts:
            yield _to_split(spec, mine, name, parts)
    whole = dict.fromkeys(f for p in homeless if (f := fused_in(spec, p.leaf)))
    for name in whole:
        yield _to_fused(
            spec, adapter, [p for p in homeless if fused_in(spec, p.leaf) == name], name
        )


def _rows_of(spec: ModelSpec, parts: Sequence[str]) -> list[tuple[str, int]]:
    """The parts with the output rows each has in the first layer that holds them."""
    sizes: dict[str, int] = {}
    for row in spec.rows:
        name = leaf_of(row.name.removesuffix(".weight"))
        if name in parts and len(row.shape) == 2:
            sizes.setdefault(name, row.shape[0])
    return [(p, sizes[p]) for p in parts]


def _to_split(spec: ModelSpec, pairs: Sequence[Pair], name: str, parts: Sequence[str]) -> Finding:
    sizes, start, cuts = _rows_of(spec, parts), 0, []
    for part, rows in sizes:
        cuts.append(f"{part}'s B is rows {start} to {start + rows - 1}")
        start += rows
    how = "split_gate_up" if name == "gate_up_proj" else "split_rows"
    fits = all(p.out == start for p in pairs)
    return Finding(
        "adapter.fused",
        "error",
        f"{len(pairs)} adapted {name} have no place: {spec.name} keeps {', '.join(parts)} apart",
        tuple(
            Evidence(p.module, f"A reads {p.inp}, B writes {p.out}", ", ".join(parts), spec.family)
            for p in pairs
        ),
        f"The adapter was trained on weights with {name} as one module (Phi-3's form), and the "
        "base has its parts.",
        f"Convert it exactly: A is copied to each part, {'; '.join(cuts)}; the rank, alpha and "
        f"scale stay. {API}.{how} does it."
        if fits
        else f"B writes {pairs[0].out} rows, the parts have {start}: another model's adapter.",
        {"modules": len(pairs), "rows": start},
    )


def _to_fused(spec: ModelSpec, adapter: Adapter, pairs: Sequence[Pair], name: str) -> Finding:
    found = list(dict.fromkeys(p.leaf for p in pairs))
    n, r = len(found), pairs[0].rank or adapter.rank
    alpha = f"√{n}·alpha (rsLoRA)" if adapter.use_rslora else f"alpha {n * adapter.alpha:g}"
    how = "fuse_gate_up" if name == "gate_up_proj" else "fuse_rows"
    return Finding(
        "adapter.fused",
        "error",
        f"{len(pairs)} adapted modules ({', '.join(found)}) have no place: {spec.name} fuses "
        f"them in {name}",
        tuple(
            Evidence(p.module, f"A reads {p.inp}, B writes {p.out}", name, spec.family)
            for p in pairs
        ),
        f"The adapter was trained on split weights; {spec.name} stores {name} as one module, so "
        f"these names match nothing and are dropped in silence.",
        f"Convert it exactly: A's stacked and B's block-diagonal on {name}, which makes rank "
        f"{n * r} and needs {alpha} to keep the scale. {API}.{how} does it.",
        {"modules": len(pairs), "rank": n * r, "alpha": n * adapter.alpha},
    )


def _leaves_adapted(context: Context) -> tuple[list[Pair], int]:
    adapter, pairs = _adapter(context)
    return [p for p in pairs if p.row is not None], adapter.rank


@rule(
    "adapter.experts", "MLP adapters reach the routed experts", needs=["adapter"], worst="warning"
)
def experts(context: Context) -> Iterable[Finding]:
    """In a mixture of experts most weights are in the routed experts, which transformers 5 keeps
    as stacked parameters, not modules. Targets by module name (gate_proj, or "all-linear") then
    find the shared expert and the dense layers at most, and the adapter looks complete.

    Example: Qwen1.5-MoE-A2.7B with gate_proj, up_proj, down_proj adapts shared_expert only: 60
    experts of width 1408, 12.5 of 14.3 billion parameters, stay as they were.

    PEFT reaches them by `target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]`.
    """
    pairs, _ = _leaves_adapted(context)
    spec = context.spec
    stacks = [r for r in spec.rows if r.experts and r.matmul]
    mlp = [p for p in pairs if p.row is not None and p.row.part == "mlp"]
    if not stacks or not mlp or any(p.row is not None and p.row.experts for p in mlp):
        return
    adapter = context.adapter
    assert adapter is not None
    meant = isinstance(adapter.target_modules, tuple) and any(
        leaf_of(t) in ("gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")
        for t in adapter.target_modules
    )
    held = sum(r.params for r in stacks)
    names = list(dict.fromkeys(leaf_of(r.name.removesuffix(".weight")) for r in stacks))
    yield Finding(
        "adapter.experts",
        "warning" if meant else "note",
        f"no routed expert is adapted: {held:,} of {spec.params:,} parameters "
        f"({100 * held / spec.params:.0f}%) stay as they were",
        tuple(Evidence(p.module, "adapted", "the routed experts", stacks[0].name) for p in mlp),
        "Routed experts are stacked parameters in transformers 5, which names of modules do not "
        "match; only the shared expert, router or dense layers were found.",
        "Name them in target_parameters: mlp.experts.gate_up_proj and mlp.experts.down_proj "
        f"(the file's own names are {', '.join(names)}).",
        {"expert_params": held, "params": spec.params},
    )


@rule("adapter.attention_only", "What an attention-only adapter leaves out", needs=["adapter"])
def attention_only(context: Context) -> Iterable[Finding]:
    """Adapters on q, k, v and o alone change where a model looks; what it knows is mostly in the
    MLP, which holds about two thirds of its weights. For a style or a format attention is enough;
    for facts or a language the MLP's three matrices help. The note says what they would cost.

    Example: rank 16 on Llama-3-8B's gate, up and down is r·(in + out) for each,

        3·16·(4096 + 14336)·32 layers = 28,311,552 parameters

    16 bytes each while training (fp32 parameter, gradient, two moments of Adam): 432 MiB.
    """
    pairs, rank = _leaves_adapted(context)
    inside = [p for p in pairs if p.layer is not None]
    if not inside or any(p.row is not None and p.row.part != "attention" for p in inside):
        return
    found = mlp_cost(context.spec, rank)
    if found is None:
        return
    assert context.adapter is not None
    names = ", ".join(dict.fromkeys(p.leaf for p in inside))
    yield attention_note("adapter.attention_only", names, context, found, "the adapter's tensors")


def mlp_cost(spec: ModelSpec, rank: int) -> tuple[int, int, str] | None:
    """(parameters, bytes of the file in bf16, names) of adapters of that rank on every MLP, routed
    experts included; None where the model has none that LoRA reaches."""
    dense = any(r.part == "mlp" and r.matmul and not r.experts for r in spec.rows)
    stacked = any(r.experts for r in spec.rows) and spec.family not in CONVERTED
    for targets in (("mlp", "experts"), ("experts",)) if stacked else (("mlp",),) * dense:
        try:
            rows = adapter_rows(spec, LoRA(rank=max(rank, 1), targets=targets))
        except UsageError:  # "mlp" means no module where all of it is experts
            continue
        names = dict.fromkeys(leaf_of(r.name) for r in rows)
        return sum(r.params for r in rows), adapter_nbytes(rows, "bf16"), ", ".join(names)
    return None


def attention_note(
    rule_id: str, names: str, context: Context, cost: tuple[int, int, str], source: str
) -> Finding:
    params, nbytes, mlp = cost
    spec = context.spec
    held = sum(r.params for r in spec.rows if r.part == "mlp")
    return Finding(
        rule_id,
        "note",
        f"only attention is adapted ({names}); the MLP, {100 * held / spec.params:.0f}% of the "
        "weights, stays as it was",
        (Evidence("adapted modules", names, "", source),),
        "Enough for style and format. New knowledge goes mostly into the MLP.",
        f"For knowledge add {mlp}: {params:,} parameters more at the same rank, "
        f"{params * BYTES_TRAINED / 2**20:,.0f} MiB while training with AdamW in fp32, "
        f"{nbytes / 1e6:,.1f} MB in a bf16 file.",
        {"params": params, "train_bytes": params * BYTES_TRAINED, "file_bytes": nbytes},
    )
