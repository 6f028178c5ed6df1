"""`show` in the terminal: the description, the tensors, the shapes through one layer."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from gateup.account.file_size import file_text
from gateup.account.flow import LayerFlow
from gateup.account.ledger import layer_label
from gateup.account.report import units
from gateup.account.report.console import cell, columns, heading, line, put
from gateup.account.report.json_report import layer_kinds
from gateup.account.report.tables import PART_STYLES
from gateup.account.report.units import tag
from gateup.account.show import Shown, TensorGroup, pattern, tensor_groups
from gateup.files.adapter import Adapter
from gateup.model.spec import AttentionSpec, LayerSpec, MoESpec


def render_shown(shown: Shown, console: Console, *, every_tensor: bool = False) -> None:
    """Everything `show` knows; `every_tensor` lists them one by one instead of in groups."""
    _spec(shown, console)
    _tensors(shown, console, every_tensor)
    _flow(shown.flow, console)
    if shown.notes:
        heading(console, "Notes")
        for note in shown.notes:
            line(console, note, indent=2)
    console.print()
    line(console, "Every figure here is exact (=): it follows from shapes and formats.", "dim")


def _spec(shown: Shown, console: Console) -> None:
    spec, total = shown.spec, shown.ledger.total
    line(console, f"{spec.name}  {spec.architecture}", "bold")
    source = shown.checkpoint
    facts = [
        ("opened", f"{source.label}" + (f", {source.path}" if source.path else "")),
        ("family", spec.family),
        ("layers L", f"{spec.num_layers:,}"),
        ("hidden_size H", f"{spec.hidden_size:,}"),
        (
            "vocab_size V",
            f"{spec.vocab_size:,}" + (", tied head" if spec.tie_word_embeddings else ""),
        ),
        ("dtype", spec.dtype or "not declared"),
    ]
    if spec.max_position_embeddings:
        facts.append(("positions", f"{spec.max_position_embeddings:,}"))
    for layer, indices in layer_kinds(spec):
        where = f"layers {layer_label(indices)}"
        facts.append((f"attention, {where}", _attention(layer.attention)))
        facts.append((f"MLP, {where}", _mlp(layer)))
    facts += [
        ("parameters", tag(f"{total.params:,}")),
        ("bytes", tag(f"{total.nbytes:,}") + f" ({units.memory(total.nbytes)}, {shown.label})"),
    ]
    if (size := file_text(shown.file)) is not None:
        facts.append(("file", size))
    if total.active_params != total.params:
        facts.append(("active parameters", tag(f"{total.active_params:,}")))
    if source.adapter is not None:
        facts += _adapter(source.adapter)
    table = columns(console, "", "", left=2)
    table.show_header = False
    for name, value in facts:
        style = PART_STYLES["mlp"] if name.startswith("MLP") else ""
        table.add_row(cell(name, "dim"), cell(value, style))
    put(console, table)


def _adapter(adapter: Adapter) -> list[tuple[str, str]]:
    """The adapter beside its base: what its config says and what its file stores."""
    ranks = sorted({adapter.rank, *adapter.rank_pattern.values()})
    kind = ("DoRA" if adapter.use_dora else "LoRA") + (", rsLoRA" if adapter.use_rslora else "")
    targets = adapter.target_modules
    listed = "by PEFT's table" if targets is None else targets
    return [
        ("adapter", f"{kind}, {adapter.path}"),
        ("adapter: base in its config", adapter.base or "not named"),
        ("adapter: rank, alpha", f"{', '.join(map(str, ranks))}; {adapter.alpha:g}"),
        ("adapter: targets", listed if isinstance(listed, str) else ", ".join(sorted(listed))),
        ("adapter: tensors", tag(f"{len(adapter.tensors):,}")),
        ("adapter: parameters", tag(f"{adapter.params:,}")),
        ("adapter: bytes", tag(f"{adapter.nbytes:,}") + f" ({units.memory(adapter.nbytes)})"),
    ]


def _attention(attention: AttentionSpec | None) -> str:
    if attention is None:
        return "none"
    a = attention
    if a.mla:
        text = (
            f"MLA, {a.num_heads} heads, d_qk {a.head_dim} ({a.mla.qk_nope_head_dim} + "
            f"{a.mla.qk_rope_head_dim} rope), d_v {a.v_head_dim}, latent {a.mla.kv_lora_rank}"
        )
    else:
        text = f"{a.num_heads} heads, {a.num_kv_heads} KV heads, head_dim {a.head_dim}"
    return text if a.window is None else f"{text}, window {a.window:,}"


def _mlp(layer: LayerSpec) -> str:
    mlp = layer.mlp
    if mlp is None:
        return "none"
    if isinstance(mlp, MoESpec):
        shared = f", shared I {mlp.shared.intermediate_size:,}" if mlp.shared else ""
        return (
            f"{mlp.num_experts} experts, {mlp.top_k} a token, I {mlp.expert.intermediate_size:,}"
            f"{shared}, {mlp.expert.act}"
        )
    kind = "gated" if mlp.matrices == 3 else "classic"
    return f"{kind}, I {mlp.intermediate_size:,}, {mlp.act}" + (", bias" if mlp.bias else "")


def _tensors(shown: Shown, console: Console, every: bool) -> None:
    """Names are cut at the layer's number: what comes before it stands once, above."""
    heading(console, "Tensors")
    names = ("name", "layers", "shape", "type", "count", "parameters", "bytes")
    table = columns(console, *names, left=2)
    groups = tensor_groups(shown.ledger) if not every else _one_by_one(shown)
    above = ""
    for g in groups:
        before, cut, after = g.name.partition("{i}.")
        if cut and before + cut != above:
            above = before + cut
            table.add_row(cell(above, "dim"))
        table.add_row(
            cell(f"  {after}" if cut else g.name, PART_STYLES[g.part]),
            cell(g.layers),
            cell(_shape(g.shape)),
            cell(g.type),
            cell(f"{g.count:,}"),
            cell(tag(f"{g.params:,}")),
            cell(tag(units.memory(g.nbytes))),
        )
    # What other columns say too goes first.
    put(console, table, drop=(5, 4, 1, 3, 2) if every else (5, 4, 3, 1, 2))


def _one_by_one(shown: Shown) -> list[TensorGroup]:
    return [
        TensorGroup(
            pattern(r) if r.copies > 1 else r.name,
            r.part,
            r.shape,
            r.type,
            "" if r.layer is None else str(r.layer),
            r.copies,
            r.params,
            r.nbytes,
        )
        for r in shown.ledger.rows
    ]


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ",".join(str(n) for n in shape) + "]"


def _flow(flow: LayerFlow, console: Console) -> None:
    heading(
        console,
        f"Through layer {flow.layer}: B = {flow.batch:,}, T = {flow.seq:,}, activations "
        f"{flow.dtype}",
    )
    table = columns(console, "step", "output", "bytes", "weights", "FLOPs", left=1)
    for s in flow.steps:
        style = PART_STYLES[s.part]
        table.add_row(
            cell(s.name, style),
            cell(_shape(s.shape)),
            cell(tag(units.memory(s.nbytes))),
            cell(tag(units.memory(s.weight_nbytes)) if s.params else ""),
            cell(tag(units.si(s.flops)) if s.flops else ""),
        )
    table.add_row(
        cell("layer", "bold"),
        Text(""),
        Text(""),
        cell(tag(units.memory(flow.weight_nbytes)), "bold"),
        cell(tag(units.si(flow.flops)), "bold"),
    )
    put(console, table, drop=(2, 3))
    line(
        console,
        f"{flow.params:,} parameters; GEMM {units.si(flow.gemm_flops, 'FLOPs')}, attention "
        f"scores and values {units.si(flow.attention_flops, 'FLOPs')} (causal). Elementwise work "
        "is not counted. With flash attention scores and softmax are never whole in memory.",
        "dim",
        indent=2,
    )
