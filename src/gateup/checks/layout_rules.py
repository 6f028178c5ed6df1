"""Gate and up: in which form they lie, which form is wanted, what cannot be told."""

from __future__ import annotations

from collections.abc import Iterable

from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding
from gateup.checks.fused import FUSED, fused_layers, stem_of
from gateup.checks.rule import rule
from gateup.checks.shapes import Exchange, as_found, exchanges, shard_degree, wrong_shapes
from gateup.checks.words import in_layers
from gateup.files.header import TensorHeader, many
from gateup.model.layout import GateUpLayout
from gateup.model.spec import GatedMLPSpec, LayerSpec, MoESpec


def declared(layer: LayerSpec) -> tuple[GateUpLayout, int] | None:
    """(layout, width) of a layer's gate and up as the family declares them; None without an MLP
    that is gated."""
    mlp = layer.mlp
    if isinstance(mlp, MoESpec):
        return mlp.expert.layout, mlp.expert.intermediate_size
    if isinstance(mlp, GatedMLPSpec):
        return mlp.layout, mlp.intermediate_size
    return None


def _fused(context: Context) -> tuple[LayerSpec, GateUpLayout, int, int] | None:
    """(first layer with gate and up in one tensor, its layout, width, number of such layers)."""
    found = [
        (layer, *known)
        for layer in context.spec.layers
        if (known := declared(layer)) and known[0].form != "split"
    ]
    return (*found[0], len(found)) if found else None


def in_words(layout: GateUpLayout) -> str:
    """How the output axis runs: "even = gate, odd = up"."""
    first, second = ("gate", "up") if layout.order == "gate_up" else ("up", "gate")
    if layout.form == "interleaved":
        return f"neighbours: even = {first}, odd = {second}"
    return f"halves: {first} first, then {second}"


def cut(layout: GateUpLayout) -> str:
    """The expression that takes gate out of the fused tensor, for people who cut it by hand."""
    axis = "..., {}" if layout.orientation == "in_out" else ":, {}" if layout.stacked else "{}"
    even, odd = ("::2", "1::2") if layout.form == "interleaved" else (":I", "I:")
    gate, up = (even, odd) if layout.order == "gate_up" else (odd, even)
    return f"gate = W[{axis.format(gate)}], up = W[{axis.format(up)}]"


@rule("layout.order", "Which half is gate: what was assumed", worst="note")
def order(context: Context) -> Iterable[Finding]:
    """Where gate and up share one tensor, they lie as halves (Phi-3, Llama 4: gate first) or as
    neighbours (gpt-oss: even = gate, odd = up; weight, bias and scales alike). Both have 2I rows
    of like numbers: neither shapes nor weights tell them apart, and a wrong guess loads without
    complaint and computes garbage. So nothing is guessed: the architecture declares its layout,
    and this note says which one the figures and remedies stand on.

    Example: a converter wrote gpt-oss's gate_up as halves for kernels that read neighbours. GSM8K
    fell to about 0; interleaving weight, bias and scale alike brought 0.87 back. For files as
    published, chunk(2) is always wrong:

        gate, up = gate_up[..., ::2], gate_up[..., 1::2]
    """
    fused = _fused(context)
    if fused is None or context.checkpoint.kind == "gguf":  # llama.cpp's converter splits them
        return
    layer, layout, width, count = fused
    row = next(r for r in context.spec.layer_rows(layer.index) if r.role.endswith("gate_up_proj"))
    wrong = "; chunk(2) is wrong here" if layout.form == "interleaved" else ""
    along = ", bias and scales" if layout.bias else ""
    yield Finding(
        "layout.order",
        "note",
        f"gate and up share one tensor in {many(count, 'layer')}; cannot tell their order from "
        f"shapes, assumed {in_words(layout)}",
        (
            Evidence(
                row.name,
                str(list(row.shape)),
                f"2·{width:,} along the output axis, {in_words(layout)}",
                f"as {context.spec.architecture} declares",
            ),
        ),
        "Halves and neighbours have the same shape and the same kind of numbers.",
        f"when you cut it: {cut(layout)}{wrong}; weight{along} alike"
        if layout.bias
        else f"when you cut it: {cut(layout)}{wrong}",
        {"layers": count, "width": width, "form": layout.form, "order": layout.order},
    )


@rule("layout.fused", "Gate and up lie in the form of their architecture", needs=["headers"])
def fused(context: Context) -> Iterable[Finding]:
    """A checkpoint with gate_up_proj (Phi-3, vLLM), linear_fc1 (Megatron) or w12 (xFormers) under
    an architecture that keeps gate_proj and up_proj apart, or the other way round: a loader finds
    neither and fills both with random numbers. Which rows are gate depends on who wrote the
    tensor; the shape [2I, H] does not say.

    Example: linear_fc1 [22016, 4096] in a Llama config with I = 11,008. Megatron puts gate rows
    first within each rank's shard: of a merged tensor rows 0 to 11,007 are gate. Merged by a plain
    cat of two ranks' shards it holds gate 0-5503, up 0-5503, gate 5504-11007, up 5504-11007.
    """
    layers = fused_layers(context)
    if not layers:
        return
    first = layers[min(layers)]
    tensor = first[0]
    stem = stem_of(tensor)
    known = FUSED.get(stem)
    numbers = {"layers": len(layers)}
    if known:
        layer = context.spec.layers[min(layers)]
        here = declared(layer)
        width = here[1] if here else 0
        yield Finding(
            "layout.fused",
            "error",
            f"{stem} holds gate and up together in {many(len(layers), 'layer')}; "
            f"{context.spec.architecture} has them apart",
            tuple(
                Evidence(
                    t.name,
                    str(list(t.shape)),
                    f"gate_proj and up_proj, [{width}, {context.spec.hidden_size}] each",
                    context.source("config"),
                )
                for t in [ts[0] for ts in layers.values()]
            ),
            f"The name is that of {known.writers} ({known.order}). Cannot tell from the shape "
            "whether this file keeps to it.",
            f"if it does: gate = W[:{width}], up = W[{width}:], saved as gate_proj and up_proj; "
            "compare one layer's output with the source before relying on it",
            {**numbers, "width": width},
        )
    else:
        yield _apart(context, layers)


def _apart(context: Context, layers: dict[int, tuple[TensorHeader, ...]]) -> Finding:
    """Gate and up of their own under an architecture that joins them."""
    found = _fused(context)
    layout = found[1] if found else GateUpLayout()
    return Finding(
        "layout.fused",
        "error",
        f"gate and up lie apart in {many(len(layers), 'layer')}; {context.spec.architecture} has "
        "them in one tensor",
        tuple(
            Evidence(t.name, str(list(t.shape)), "gate_up_proj", context.source("config"))
            for t in layers[min(layers)]
        ),
        "The checkpoint was converted for another architecture (Llama's names, usually).",
        f"join them as {in_words(layout)}: "
        + (
            "torch.cat([gate, up])"
            if layout.form == "concat" and layout.order == "gate_up"
            else "torch.stack([gate, up], -1).flatten(-2)"
        )
        + ", or name the architecture that keeps them apart in config.json",
        {"layers": len(layers)},
    )


@rule(
    "layout.transposed", "Weights are stored in their architecture's orientation", needs=["headers"]
)
def transposed(context: Context) -> Iterable[Finding]:
    """torch's Linear stores [out, in]; GPT-2's Conv1D, gpt-oss's and Llama 4's experts store
    [in, out]. A converter that forgets to turn them gives shapes that are each other's mirror
    image. Square matrices hide the fault: where the others are turned, assume those are too.

    Example: gpt-oss's down_proj is [32, 2880, 2880], square, and says nothing; gate_up_proj as
    [32, 5760, 2880] instead of [32, 2880, 5760] shows that all were turned.
    """
    wrongs = wrong_shapes(context)
    claimed: set[str] = set().union(*(e.claims for e in exchanges(context, wrongs)))
    turned = [w for w in wrongs if w.transposed and w.tensor.name not in claimed]
    if not turned:
        return
    square = [
        r.name
        for r in context.spec.rows
        if len(r.shape) >= 2 and r.shape[-1] == r.shape[-2] and r.matmul
    ]
    yield Finding(
        "layout.transposed",
        "error",
        f"{many(len(turned), 'tensor')} transposed",
        as_found(turned, context),
        "A converter did not turn them, or turned them twice.",
        "transpose the last two axes of these tensors"
        + (
            f", and look at the {len(square):,} square ones, which cannot show it" if square else ""
        ),
        {"tensors": len(turned), "square": len(square)},
    )


@rule("layout.exchanged", "Each tensor bears its own name", needs=["headers"])
def exchanged(context: Context) -> Iterable[Finding]:
    """gate is [I, H] and down is [H, I]: under each other's names both look transposed, and turning
    them would put down's numbers where gate's belong. What tells the two faults apart is what else
    would have been turned: up, or the biases, or attention's narrow matrices.

    Example: a converter took w1, w2, w3 for gate, up, down. up_proj is [4096, 11008] and down_proj
    [11008, 4096] in every layer, gate_proj is as described: the two have each other's tensor.
    Meta's order is w1 gate, w3 up, w2 down.

    Where one layer alone has it, or nothing else in the layer could tell, both readings fit.
    """
    groups: dict[tuple[tuple[str, str], str], list[Exchange]] = {}
    for e in exchanges(context, wrong_shapes(context)):
        groups.setdefault((e.names, e.sure), []).append(e)
    for (names, sure), found in groups.items():
        yield _exchanged(context, names, sure == "sure", found)


def _exchanged(
    context: Context, names: tuple[str, str], sure: bool, found: list[Exchange]
) -> Finding:
    a, b = names
    layers = in_layers({e.first.row.layer or 0 for e in found})
    pairs = [w for e in found for w in (e.first, e.second)]
    rename = f"exchange the names {a} and {b} in {layers}; the values stay as they are"
    gated = {"gate", "up", "down"} >= {
        w.row.role.removesuffix(".weight").rpartition(".")[2].removesuffix("_proj") for w in pairs
    }
    also = (
        ". Gate and up have one shape: whether they are right then, --deep tells from a text"
        if gated
        else ""
    )
    witness = found[0].witness
    if sure:
        cause = f"Each has the shape of the other, and {witness}: nothing was turned."
        remedy = f"{rename}. Do not transpose them{also}"
    else:
        likelier = f"; {witness}, which makes the names likelier" if witness else ""
        cause = (
            "Cannot tell: both the names exchanged and both tensors transposed give these shapes"
            f"{likelier}."
        )
        remedy = (
            f"compare one row with the source's; then {rename}, or transpose both. The wrong one of"
            " the two loads as well, and computes garbage"
        )
    title = f"{a} and {b} have each other's shape in {layers}"
    return Finding(
        "layout.exchanged",
        "error",
        f"{title}: their names were exchanged" if sure else f"{title}: exchanged or transposed",
        as_found(pairs, context),
        cause,
        remedy,
        {"pairs": len(found), "sure": "yes" if sure else "no"},
    )


@rule("layout.shard", "The files are the whole model, not one rank's share", needs=["headers"])
def shard(context: Context) -> Iterable[Finding]:
    """Every weight, in MLP and attention alike, cut by the same whole number along one axis: the
    files are one tensor-parallel rank's. Gate and up are cut apart, each by rows, down by columns.

    Example: fc1 [2I, H] with I = 11,008 at tp 2. Rank r holds gate rows r·5504 to (r+1)·5504 and
    then the same rows of up. Cutting fc1 in two halves instead gives rank 0 all gate rows: it
    loads, and its output is wrong. Merging undoes the same order: the gate parts of all ranks,
    then the up parts; not a plain cat of the ranks' tensors.
    """
    wrongs = [w for w in wrong_shapes(context) if not w.transposed]
    k = shard_degree(context, wrongs)
    if k is None:
        return
    yield Finding(
        "layout.shard",
        "error",
        f"the files hold one of {k} tensor-parallel shards: {many(len(wrongs), 'tensor')} are "
        f"1/{k} of their size",
        as_found(wrongs, context),
        "A trainer or server wrote what one rank holds.",
        f"merge the shards of all {k} ranks: rows of q, k, v, gate and up one rank after the "
        "other, columns of o and down likewise; where gate and up share a tensor, the gate parts "
        "of all ranks first, then the up parts",
        {"tp": k, "tensors": len(wrongs)},
    )


@rule(
    "layout.ranks",
    "Fused gate and up are cut apart before they are sharded",
    needs=["tp"],
    worst="note",
)
def ranks(context: Context) -> Iterable[Finding]:
    """Under tensor parallelism each rank takes matching rows of gate and of up. A tensor that holds
    both must be split first, each part sharded, and the parts joined again on the rank.

    Example: I = 11,008, tp 2, halves with gate first. Rank 0 holds rows 0-5503 and 11008-16511,
    rank 1 rows 5504-11007 and 16512-22015. Rows 0-11007 for rank 0 would be all of gate: it
    loads, and the output is wrong.
    """
    found = _fused(context)
    tp = context.tp
    if found is None or tp is None or tp < 2 or context.checkpoint.kind == "gguf":
        return
    _, layout, width, count = found
    if width % tp:
        return  # no split at all; split rules say so
    part = width // tp
    step = "gate" if layout.order == "gate_up" else "up"
    if layout.form == "interleaved":
        rows = f"rank 0 holds rows 0-{2 * part - 1}, and so on: neighbours stay together"
    else:
        rows = (
            f"rank 0 holds rows 0-{part - 1} and {width}-{width + part - 1}, rank {tp - 1} rows "
            f"{width - part}-{width - 1} and {2 * width - part}-{2 * width - 1}"
        )
    wrong = (
        ""
        if layout.form == "interleaved"
        else f"; a plain cut would give rank 0 rows 0-{2 * part - 1}"
        + (f", all of {step}" if tp == 2 else f", {step} only")
    )
    yield Finding(
        "layout.ranks",
        "note",
        f"at tp {tp} gate and up of {many(count, 'layer')} must be cut apart before sharding: "
        f"{part:,} rows of each a rank",
        (
            Evidence(
                "gate_up_proj",
                f"2·{width:,} rows, {in_words(layout)}",
                rows,
                f"as {context.spec.architecture} declares",
            ),
        ),
        f"Rank r holds gate[r·{part}:(r+1)·{part}] and up[r·{part}:(r+1)·{part}]{wrong}.",
        "merge by undoing it: the gate parts of all ranks, then the up parts"
        if layout.form == "concat"
        else "merge by a plain cat of the ranks along the output axis",
        {"tp": tp, "rows": part, "layers": count},
    )
