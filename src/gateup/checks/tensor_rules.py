"""The tensors themselves: all there, none twice, none empty, none that nobody asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import prod

from gateup.checks.context import Context
from gateup.checks.edits import LAYER, PREDICTION
from gateup.checks.finding import Evidence, Finding, Severity
from gateup.checks.fused import fused_layers
from gateup.checks.name_rules import found_as
from gateup.checks.rule import rule
from gateup.checks.words import SHOWN, in_layers, where
from gateup.errors import (
    ConfigError,
    GateupError,
    HeaderError,
    TruncatedError,
    UnknownArchitectureError,
)
from gateup.files.header import TensorHeader, listed, many
from gateup.model.config import whole
from gateup.model.spec import MoESpec, TensorSpec


@rule("files.readable", "Every file can be read as what it claims to be")
def readable(context: Context) -> Iterable[Finding]:
    """Headers are read strictly: lengths against the file's size, tensors against each other, JSON
    as the standard has it. Where the model itself fails, nothing else can be said about it: that
    is the only finding, and the exit code is 2, as for any unreadable input. A tokenizer or a
    generation_config.json beside the model that cannot be read is an error like others.

    Example: a download that stopped.

        model.safetensors is truncated: its tensors end at byte 988,097,824, the file at
        412,090,368

    Truncation is offset + size against the file's length and nothing else; a name that is not
    there says nothing about it.
    """
    for error in context.unreadable:
        yield unreadable(error)


def unreadable(error: GateupError) -> Finding:
    """The finding that stands for a file that cannot be read."""
    if isinstance(error, TruncatedError):
        gone = error.need - error.have
        return Finding(
            rule="files.readable",
            severity="error",
            title=error.what,
            evidence=(Evidence(error.where or "", f"{error.have:,} bytes", f"{error.need:,}"),),
            cause=f"{gone:,} bytes are missing: {len(error.cut):,} of {error.tensors:,} tensors "
            f"are cut or absent ({listed([*error.cut], 3)}).",
            remedy=f"{error.remedy}; a client that resumes has to fetch {gone:,} bytes from byte "
            f"{error.have:,} on",
            numbers={"have": error.have, "need": error.need, "cut": len(error.cut)},
        )
    return Finding(
        rule="files.readable",
        severity="error",
        title=error.what,
        evidence=(Evidence(error.where or "the input", "cannot be used", error.expected or ""),),
        cause=_why_unreadable(error),
        remedy=error.remedy or "",
    )


def _why_unreadable(error: GateupError) -> str:
    """Why, where that is another thing than the title says; "" otherwise."""
    if isinstance(error, UnknownArchitectureError):
        return "Nothing is guessed: an architecture is described here, or it is refused."
    if isinstance(error, HeaderError | ConfigError):
        return "The file does not hold what it should, or not all of it."
    return ""


@rule("files.index", "The index agrees with its shards", needs=["headers"])
def index(context: Context) -> Iterable[Finding]:
    """model.safetensors.index.json says which shard holds which tensor, and total_size: the bytes
    of all tensors together. Hubs, accelerate and size calculators believe it without opening a
    shard. An index of another revision, or tensors counted twice, mislead them.

    Example: the index of a merge says total_size 29,012,316,160, the tensors of its shards take
    14,506,158,080: every shard was counted twice.
    """
    for m in context.mismatches("unlisted", "misplaced"):
        count = len(m.names)
        lost = m.kind == "unlisted"
        yield Finding(
            "files.index",
            "error" if lost else "warning",
            f"{many(count, 'tensor')} of the shards "
            + ("missing from the index" if lost else "in another shard than the index says"),
            (Evidence(listed([*m.names], 3), "in a shard", "in the index", "weight_map"),),
            "The index was written for other shards."
            + (" A loader that follows it never loads these tensors." if lost else ""),
            "write the model again with save_pretrained, or fetch index and shards of one revision",
            {"tensors": count},
        )
    if context.checkpoint.kind == "safetensors":
        yield from _total_size(context)


def _total_size(context: Context) -> Iterable[Finding]:
    said = context.checkpoint.metadata.get("total_size")
    if isinstance(said, float) and said.is_integer():
        said = int(said)
    stored = sum(t.nbytes for t in context.checkpoint.headers)
    if not whole(said) or said <= 0 or said == stored:
        return
    ratio = said / stored if stored else 0
    cause = "The number was not brought up to date when tensors were added, removed or converted."
    if ratio >= 2 and said % stored == 0:
        cause = f"Every tensor was counted {said // stored} times."
    elif said - stored in (heads := _head_sizes(context)):
        cause = f"The difference is the head's {heads[said - stored]}: it was counted beside the "
        cause += "embeddings it shares."
    yield Finding(
        "files.index",
        "warning",
        f"the index says {said:,} bytes, its tensors take {stored:,}",
        (Evidence("metadata.total_size", f"{said:,}", f"{stored:,}", "sum over all shards"),),
        cause,
        f"set total_size to {stored}",
        {"declared": said, "stored": stored},
    )


def _head_sizes(context: Context) -> dict[int, str]:
    """Bytes of a head of the embeddings' size -> how they come about, for widths of 2 and 4."""
    V, H = context.spec.vocab_size, context.spec.hidden_size
    return {V * H * width: f"{V:,}·{H:,}·{width} bytes" for width in (2, 4)}


@rule(
    "files.beside",
    "No second copy of the weights lies beside the first",
    needs=["headers"],
    worst="note",
)
def beside(context: Context) -> Iterable[Finding]:
    """A folder may hold the weights twice: shards and a consolidated.safetensors, or the shards of
    an older upload. Tools that take every *.safetensors they find load or count both.

    Example: Mistral-7B-Instruct-v0.3 has model-0000x-of-00003.safetensors, 14.5 GB together, and
    consolidated.safetensors with the same weights under other names: 29 GB to download, 14.5 GB
    of model.
    """
    used = {t.file.name for t in context.checkpoint.headers}
    if context.checkpoint.kind != "safetensors":
        return
    extra = {
        n: size
        for n, size in context.beside.items()
        if n.endswith(".safetensors")
        and n not in used
        and not n.startswith(("optimizer", "adapter", "."))
    }
    if not extra:
        return
    total = sum(extra.values())
    yield Finding(
        "files.beside",
        "note",
        f"{many(len(extra), 'file')} beside the model not part of it ({total:,} bytes): "
        f"{listed([*extra], 3)}",
        tuple(
            Evidence(name, f"{size:,} bytes", "", "not named by the index")
            for name, size in extra.items()
        ),
        "The figures leave these files out; a tool that takes every .safetensors counts both.",
        "leave them out of the download: hf download --exclude PATTERN",
        {"files": len(extra), "bytes": total},
    )


@rule("tensors.missing", "Every tensor of the description is in the files", needs=["headers"])
def missing(context: Context) -> Iterable[Finding]:
    """transformers fills a weight that the files lack with random numbers and prints one warning
    among many; llama.cpp refuses the file. Names that belong to another layout are no loss: a
    mixture of experts has no dense gate_proj, up_proj and down_proj.

    Example: model.layers.17.mlp.up_proj.weight is in no shard. 45,088,768 parameters would be
    random; the model answers, and answers badly.
    """
    skip = fused_layers(context)
    for m in context.mismatches("absent", "partly"):
        rows = [r for r in m.rows if r.layer not in skip or r.part != "mlp"]
        rows = [r for r in rows if not r.role.endswith(".bias")]
        if not rows:
            continue
        partly = m.kind == "partly"
        params = sum(r.params for r in rows)
        what = (
            f"experts are missing from {many(len(rows), 'group')}"
            if partly
            else (f"{many(len(rows), 'tensor')} in no file ({params:,} parameters)")
        )
        source = context.source("config")
        names = [t.name for t in _unknown(context)]
        there = found_as(names, rows)
        shown = listed([*m.names], SHOWN) if partly else listed([r.name for r in rows], SHOWN)
        yield Finding(
            "tensors.missing",
            "error",
            f"{what}: {where(rows)}",
            (Evidence(shown, "absent", _shapes(rows), source),),
            f"{there.tensors:,} of them are there {there.how}."
            if there
            else "The files are not the whole model that config.json describes, or they use names "
            "that the architecture does not have.",
            there.remedy
            if there
            else "fetch all files of one revision; if the names differ, convert the checkpoint to "
            "those of its architecture",
            {"tensors": len(rows), "params": params, "elsewhere": there.tensors if there else 0},
        )


def _unknown(context: Context) -> list[TensorHeader]:
    return [t for m in context.mismatches("unknown") for t in m.tensors]


def renaming(context: Context, tensors: Sequence[TensorHeader]) -> str:
    """What to do with names that the architecture does not have."""
    rows = [r for m in context.mismatches("absent", "partly") for r in m.rows]
    there = found_as([t.name for t in tensors], rows)
    if there:
        return there.remedy
    return "rename them if they are the model's own; otherwise leave them out when saving"


def _shapes(rows: Sequence[TensorSpec]) -> str:
    kinds = list(dict.fromkeys(str(list(r.shape)) for r in rows))
    return ", ".join(kinds[:3]) + (" …" if len(kinds) > 3 else "")


@rule("tensors.bias", "Biases are where the config declares them", needs=["headers"])
def biases(context: Context) -> Iterable[Finding]:
    """A bias that config.json does not declare is dropped at load, without an error. One that it
    declares and the files lack is made up (zeros, or random numbers).

    Example: a Llama converted from Qwen2 keeps q_proj.bias, k_proj.bias and v_proj.bias while
    attention_bias is false: 84 tensors are dropped, and the model talks nonsense. With
    attention_bias true it is itself again.
    """
    known = {r.name.removesuffix(".weight") for r in context.spec.rows}
    for m in context.mismatches("unknown"):
        extra = [t for t in m.tensors if _bias_of(t.name, known)]
        if extra:
            params = sum(prod(t.shape) for t in extra)
            yield Finding(
                "tensors.bias",
                "error",
                f"{len(extra):,} {'bias' if len(extra) == 1 else 'biases'} in the files "
                f"({params:,} parameters) that the config does not declare",
                tuple(
                    Evidence(t.name, str(list(t.shape)), "no bias", context.source("config"))
                    for t in extra
                ),
                f"{context.spec.architecture} has no such biases: a loader drops them.",
                "use an architecture that has them, or fold them away before converting",
                {"tensors": len(extra), "params": params},
            )
    for m in context.mismatches("absent"):
        rows = [r for r in m.rows if r.role.endswith(".bias")]
        if rows:
            yield Finding(
                "tensors.bias",
                "error",
                f"{len(rows):,} {'bias' if len(rows) == 1 else 'biases'} in no file: {where(rows)}",
                (
                    Evidence(
                        listed([r.name for r in rows], SHOWN),
                        "absent",
                        _shapes(rows),
                        context.source("config"),
                    ),
                ),
                "A writer dropped them. Without its biases the model computes something else.",
                "convert the checkpoint again from its source",
                {"tensors": len(rows), "params": sum(r.params for r in rows)},
            )


def _bias_of(name: str, known: set[str]) -> bool:
    stem = name.removesuffix(".bias")
    return stem != name and any(n in known for n in (stem, "model." + stem))


# Stored by some writers, computed by every loader.
_HARMLESS = re.compile(r"rotary_emb|inv_freq|position_ids|masked_bias|rope_freqs")


@rule(
    "tensors.unexpected", "The files hold nothing that the model would not load", needs=["headers"]
)
def unexpected(context: Context) -> Iterable[Finding]:
    """Tensors outside the description are skipped at load. That is right for a vision tower or for
    the extra layer of multi-token prediction, and wrong for weights under another name, and for
    layers beyond num_hidden_layers: the model runs without them.

    Example: a checkpoint saved through torch.compile and a wrapper has names like
    net._orig_mod.layers.0.mlp.gate_proj.weight: none of them is loaded.
    """
    known = {r.name.removesuffix(".weight") for r in context.spec.rows}
    fused = fused_layers(context)
    own = {t.name for tensors in fused.values() for t in tensors}
    for m in context.mismatches("unknown", "beyond", "tower"):
        tensors = [
            t
            for t in m.tensors
            if not _HARMLESS.search(t.name) and not _bias_of(t.name, known) and t.name not in own
        ]
        if m.kind == "beyond":
            yield from _beyond(context, tensors)
        elif tensors:
            unknown = m.kind == "unknown"
            yield _outside(
                context,
                "warning" if unknown else "note",
                tensors,
                f"They have no place in {context.spec.architecture}."
                if unknown
                else "The checkpoint is a model of several kinds of input; the text part is what "
                "is described.",
                renaming(context, tensors) if unknown else "",
            )


def _beyond(context: Context, tensors: Sequence[TensorHeader]) -> Iterable[Finding]:
    """Layers after the last one described: of multi-token prediction, or dropped by mistake."""
    count = context.spec.num_layers
    layers: dict[int, list[TensorHeader]] = {}
    for t in tensors:
        match = LAYER.search(t.name)
        layers.setdefault(int(match[1]) if match else count, []).append(t)
    extra = {i for i, ts in layers.items() if any(PREDICTION.search(t.name) for t in ts)}
    predicting = [t for i in sorted(extra) for t in layers[i]]
    dropped = {i: ts for i, ts in sorted(layers.items()) if i not in extra}
    if predicting:
        yield _outside(
            context,
            "note",
            predicting,
            f"config.json says {count} layers; these belong to later ones, of multi-token "
            "prediction, which are not loaded.",
            "",
        )
    if dropped:
        yield _outside(
            context,
            "error",
            [t for ts in dropped.values() for t in ts],
            f"config.json says {count} layers, the files go on to {in_layers(dropped)}. These are "
            "dropped at load with a line in a log, and the model runs without them.",
            f"set num_hidden_layers to {max(dropped) + 1}, or leave these layers out when saving",
        )


def _outside(
    context: Context, severity: Severity, tensors: Sequence[TensorHeader], why: str, remedy: str
) -> Finding:
    elements = sum(prod(t.shape) for t in tensors)
    return Finding(
        "tensors.unexpected",
        severity,
        f"{many(len(tensors), 'tensor')} ({elements:,} elements) outside the description",
        tuple(
            Evidence(t.name, str(list(t.shape)), "no such tensor", context.source("config"))
            for t in tensors
        ),
        why,
        remedy,
        {"tensors": len(tensors), "elements": elements},
    )


@rule("tensors.duplicate", "No tensor is stored twice", needs=["headers"])
def duplicate(context: Context) -> Iterable[Finding]:
    """The same weight under two names (with and without the prefix model., say) costs its bytes
    twice, and which of them is loaded depends on the loader.

    Example: layers.0.mlp.up_proj.weight and model.layers.0.mlp.up_proj.weight in one file: two
    halves of a merge that was saved over itself.
    """
    for m in context.mismatches("doubled"):
        params = sum(r.params for r in m.rows)
        wanted = {r.name for r in m.rows}
        copies = [t for t in context.checkpoint.headers if t.canonical in wanted]
        yield Finding(
            "tensors.duplicate",
            "error",
            f"{many(len(m.rows), 'tensor')} stored more than once ({params:,} parameters)",
            tuple(
                Evidence(t.name, f"in {t.file.name}", f"once, as {t.canonical}", "its names")
                for t in copies
            ),
            "Two writings of one model were put together. Loaders differ in which they take.",
            "keep one of them: write the model again with save_pretrained",
            {"tensors": len(m.rows), "params": params},
        )


@rule("tensors.empty", "No tensor has zero elements", needs=["headers"])
def empty(context: Context) -> Iterable[Finding]:
    """Under ZeRO-3 each rank holds a slice, and a weight looked at without gathering it has shape
    [0]. Saved so, the file has every name and no data.

    Example: all 291 tensors of an 8B model have shape [0]; the file has 35 kB. Loaders complain
    about shapes, [0] against [4096, 4096].
    """
    tensors = [t for t in context.checkpoint.headers if not prod(t.shape)]
    if not tensors:
        return
    total = len(context.checkpoint.headers)
    yield Finding(
        "tensors.empty",
        "error",
        f"{len(tensors):,} of {total:,} tensors have no elements",
        tuple(Evidence(t.name, str(list(t.shape)), "data") for t in tensors),
        "The weights were saved from placeholders: DeepSpeed ZeRO-3 or FSDP, without gathering "
        "them first. Their values are not in these files.",
        "take them from the trainer's own checkpoint with DeepSpeed's zero_to_fp32.py, or train "
        "with stage3_gather_16bit_weights_on_model_save true",
        {"tensors": len(tensors), "total": total},
    )


@rule(
    "tensors.experts",
    "A mixture of experts is complete without dense names",
    needs=["headers"],
    worst="note",
)
def experts(context: Context) -> Iterable[Finding]:
    """Layers of a mixture of experts store their matrices per expert or stacked, and a router.
    ffn_up and its like are absent from such layers by design, and a checker that looks for them
    calls a whole file truncated.

    Example: a Qwen3-Coder-30B GGUF has ffn_up_exps, ffn_gate_exps, ffn_down_exps and ffn_gate_inp
    in every layer. Its 579 tensors end at byte 18,556,689,568, which is the file's size: it is
    complete.
    """
    spec = context.spec
    sparse = [x.index for x in spec.layers if isinstance(x.mlp, MoESpec)]
    if not sparse or context.mismatches("absent", "partly"):
        return
    ends: dict[str, int] = {}
    for t in context.checkpoint.headers:
        ends[t.file.name] = max(ends.get(t.file.name, 0), t.offset + t.nbytes)
    mlp = spec.layers[sparse[0]].mlp
    assert isinstance(mlp, MoESpec)
    name, end = max(ends.items(), key=lambda e: e[1])
    size = context.beside.get(name, end)
    yield Finding(
        "tensors.experts",
        "note",
        f"mixture of experts, complete: {len(context.checkpoint.headers):,} tensors, dense MLP "
        f"names absent from {many(len(sparse), 'layer')} by design",
        (
            Evidence(
                name, f"last tensor ends at byte {end:,}", f"{size:,} bytes", "the file's size"
            ),
        ),
        f"{mlp.num_experts} experts and a router stand where a dense layer has its three matrices.",
        "",
        {"layers": len(sparse), "experts": mlp.num_experts, "end": end, "size": size},
    )
