"""Config against weights: whether config.json says what the files hold, and what it should say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateup.checks import known
from gateup.checks.context import Context
from gateup.checks.edits import Edit
from gateup.checks.finding import Evidence, Finding
from gateup.checks.rule import rule
from gateup.checks.shapes import (
    Width,
    as_found,
    exchanges,
    odd_widths,
    shard_degree,
    wrong_shapes,
)
from gateup.checks.words import in_layers, typed
from gateup.files.header import many
from gateup.files.mismatch import Mismatch
from gateup.model import presets
from gateup.model.families import family_of
from gateup.model.families.per_layer import deci_width
from gateup.model.spec import GatedMLPSpec

Numbers = Mapping[str, int | float | str]


@rule("config.fields", "config.json describes the weights beside it", needs=["headers"])
def fields(context: Context) -> Iterable[Finding]:
    """A config.json that was edited, or copied from a sibling, does not fit the files; loaders
    answer with the first shape that differs. Here every field that a shape follows from is tried
    with the values that the files' own numbers suggest, and the headers are matched again: the
    remedy is an edit after which nothing differs.

    Example: a Qwen2.5-0.5B with "num_key_value_heads": 14. k_proj and v_proj of 24 layers are
    [128, 896] where 14·64 = 896 rows are described. With 2 every tensor fits.

    What is edited is the description. Weights are never changed to fit a config.
    """
    edit = context.edit
    if edit is None:
        return
    before = context.checkpoint.mismatches
    wrong = [m for m in before if m.kind in ("shape", "absent", "partly", "beyond", "unknown")]
    count = sum(len(m.tensors) or len(m.rows) for m in wrong)
    source = context.source("config")
    said = ", ".join(f"{_key(context, k)} {_value(old)}" for k, (old, _) in edit.changes.items())
    fits = ", ".join(f"{_key(context, k)} {_value(new)}" for k, (_, new) in edit.changes.items())
    numbers: dict[str, int | float | str] = {"tensors": count}
    for key, (old, new) in edit.changes.items():
        numbers[f"{key}.found"] = "absent" if old is None else old
        numbers[f"{key}.fits"] = new
    yield Finding(
        "config.fields",
        "error",
        f"{many(count, 'tensor')} {'differs' if count == 1 else 'differ'} from the config: it says "
        f"{said}, the files fit {fits}",
        tuple(_evidence(wrong, source)),
        _why(edit, context),
        _remedy(context, edit, f"set {fits} in {source}"),
        numbers,
    )


def _remedy(context: Context, edit: Edit, setting: str) -> str:
    """The edit; where it takes the embedding for a head that is not there, only with a proof."""
    fits = "" if _leftover(edit) else "; every tensor fits then"
    if edit.changes.get("tie_word_embeddings", (None, False))[1] is not True:
        return setting + fits
    twins = known.twins(context.spec)
    alike = twins or [
        p for p in presets.PRESETS.values() if p.config.get("model_type") == context.spec.family
    ]
    tied = [p for p in alike if presets.spec(p.name).tie_word_embeddings]
    usual = (
        f"{'presets of its sizes' if twins else f'known {context.spec.family} models'}: "
        f"{len(tied)} of {len(alike)} tied; "
        if alike
        else ""
    )
    return (
        "fetch the files again, from where the head (lm_head.weight) is. Only if the model that "
        "these weights came from was tied, as its own config.json or its base's tells "
        f"({usual}a head of its own is lost for good by this): {setting}{fits}"
    )


def _key(context: Context, key: str) -> str:
    """The field's name as the file spells it (GGUF has its own keys)."""
    if context.checkpoint.kind != "gguf":
        return key
    family = family_of(context.spec)
    ours = next((k for k, name in family.gguf_keys.items() if name == key), None)
    return f"{family.gguf_arch}.{ours}" if ours else key


def _value(value: int | bool | None) -> str:
    return "(absent)" if value is None else typed(value)


def _leftover(edit: Edit) -> bool:
    return any(
        m.kind in ("shape", "absent", "partly", "beyond", "unknown") for m in edit.mismatches
    )


def _evidence(mismatches: Sequence[Mismatch], source: str) -> Iterable[Evidence]:
    for m in mismatches:
        if m.kind == "shape":
            for tensor, shape in zip(m.tensors, m.expected, strict=True):
                yield Evidence(tensor.name, str(list(tensor.shape)), str(list(shape)), source)
        elif m.tensors:
            for tensor in m.tensors:
                yield Evidence(tensor.name, str(list(tensor.shape)), "no such tensor", source)
        else:
            for row in m.rows:
                yield Evidence(row.name, "absent", str(list(row.shape)), source)


# Field -> what is usually behind it.
_REASONS: Mapping[str, str] = {
    "vocab_size": "The embedding was resized, or never was, and config.json says otherwise.",
    "num_hidden_layers": "Layers were added or removed and config.json was not. What is beyond its "
    "number is dropped at load with a line in a log; what is missing is made up at random.",
    "tie_word_embeddings": "There is no head in the files, and untied a loader makes it up at "
    "random. Either the model was tied and the flag is lost, or the head is: the files cannot tell "
    "the two apart.",
    "mlp_bias": "The MLPs' biases are in the files; a loader drops what is not declared.",
    "attention_bias": "The projections' biases are in the files; a loader drops what is not "
    "declared.",
}


def _why(edit: Edit, context: Context) -> str:
    reasons = []
    for key, (_, new) in edit.changes.items():
        if new is False and key.endswith("bias"):
            reasons.append("The declared biases are in no file.")
        elif key in _REASONS:
            reasons.append(_REASONS[key])
    return " ".join(dict.fromkeys(reasons)) or (
        f"{context.source('config')} belongs to another model, or was edited after the weights "
        "were written."
    )


@rule(
    "config.widths", "Every layer's MLP has the width that the config gives it", needs=["headers"]
)
def widths(context: Context) -> Iterable[Finding]:
    """Pruning layer by layer leaves MLPs of different widths. Most architectures have one
    intermediate_size for all, so no value of it fits, and stock classes cannot load the file.

    The lossless way out is to pad with zeros to one width: rows of gate_proj and up_proj, columns
    of down_proj. A zero row of up makes act(gate)·up zero whatever the activation is, a zero
    column of down ignores it: no output changes.

    Example: a Qwen2.5-0.5B (hidden 896, intermediate 4864, 24 layers) has down_proj of 2816
    columns in layers 4 and 9, 3840 in 7, 768 in 13 and 17. The file is whole. Padding those five
    layers back to 4864 costs 3·896·(2·2048 + 1024 + 2·4096) = 35,782,656 weights.

    ignore_mismatched_sizes is no way out: it replaces the tensors that do not fit by random ones.
    """
    wrongs = wrong_shapes(context)
    if shard_degree(context, wrongs):
        return
    odd = odd_widths(context, wrongs)
    torn = [w for w in odd if w.found is None]
    if torn:
        yield _torn(context, torn)
    for group in ("", "experts", "shared_expert"):
        whole = [w for w in odd if w.found is not None and w.group == group]
        if whole:
            yield _padding(context, whole, group)


def _torn(context: Context, torn: Sequence[Width]) -> Finding:
    tensors = [w for t in torn for w in t.tensors]
    return Finding(
        "config.widths",
        "error",
        f"gate, up and down disagree about the width in {in_layers([t.layer for t in torn])}",
        as_found(tensors, context),
        "One of them was cut or padded without the others; no width fits all three.",
        "take these layers from the source of the checkpoint; what was cut away is not in the file",
        {"layers": len(torn), "tensors": len(tensors)},
    )


def _padding(context: Context, odd: Sequence[Width], group: str) -> Finding:
    spec = context.spec
    said = odd[0].said
    found = {w.layer: w.found or 0 for w in odd}
    target = max(*found.values(), *(w.said for w in odd))
    label = {"": "an MLP", "experts": "experts", "shared_expert": "shared experts"}[group]
    by_width = Counter(found.values())
    listing = "; ".join(
        f"{width} in {in_layers([i for i, w in found.items() if w == width])}"
        for width in sorted(by_width, reverse=True)
    )
    per_layer = family_of(spec).model_type in ("nemotron-nas", "openelm")
    experts = max(max(t.row.experts, 1) for w in odd for t in w.tensors)
    copies = experts if group == "experts" else 1
    rest = [x.index for x in spec.layers if x.mlp is not None and x.index not in found]
    channel = 3 * spec.hidden_size + (2 if _biased(context, odd[0]) else 0)
    cost = channel * copies * sum(target - width for width in found.values())
    short = sorted(i for i, width in found.items() if width < target)
    others = rest if target > said else []
    cost += channel * copies * len(others) * (target - said)
    pad = in_layers([*short, *others])
    remedy = f"pad gate and up with zero rows and down with zero columns to {target}"
    remedy += f" in {pad}"
    if target != said:
        remedy += f", and set intermediate_size to {target}"
    remedy += f": no output changes, {cost:,} weights more"
    if per_layer:
        remedy = f"write these widths into the config's per-layer fields: {listing}; or {remedy}"
    return Finding(
        "config.widths",
        "error",
        f"{len(found)} of {spec.num_layers} layers have {label} of another width than {said}: "
        f"{listing}",
        as_found([w for o in odd for w in o.tensors[-1:]], context),
        "The files are whole: gate, up and down of each of these layers agree with each other "
        f"(pruned layer by layer, it seems). {spec.architecture} has "
        + (
            "a width for each layer, and the config gives others."
            if per_layer
            else "one width for all layers, so no intermediate_size is right."
        ),
        remedy
        + ("" if per_layer else "; otherwise ship a class with a width per layer")
        + ". Not ignore_mismatched_sizes: it puts random weights there",
        {"layers": len(found), "target": target, "cost": cost}
        | {f"layer.{i}": w for i, w in sorted(found.items())},
    )


def _biased(context: Context, odd: Width) -> bool:
    """Whether gate and up have biases, which are padded too."""
    rows = context.spec.layer_rows(odd.layer)
    return any(
        r.role.removeprefix(odd.group + ".").startswith(("gate", "up"))
        and r.role.endswith("_proj.bias")
        for r in rows
    )


@rule("config.shape", "Every tensor has the shape that the config gives it", needs=["headers"])
def shape(context: Context) -> Iterable[Finding]:
    """What is left when no edit of the config explains the shapes, no layer was pruned, nothing is
    transposed and the file is not one shard of several.

    Example: model.layers.3.self_attn.q_proj.weight is [3072, 4096] where [4096, 4096] is
    described, and all other layers are as described: eight heads of one layer were pruned. A
    loader refuses the tensor.
    """
    wrongs = [w for w in wrong_shapes(context) if not w.transposed and not w.empty]
    if shard_degree(context, wrongs):
        return
    claimed = {w.tensor.name for o in odd_widths(context, wrongs) for w in o.tensors}
    claimed.update(*(e.claims for e in exchanges(context, wrong_shapes(context))))
    left = [w for w in wrongs if w.tensor.name not in claimed]
    if not left:
        return
    roles = Counter(w.row.role for w in left)
    listing = ", ".join(f"{n}× {role}" for role, n in roles.most_common(4))
    yield Finding(
        "config.shape",
        "error",
        f"{many(len(left), 'tensor')} of another shape than described ({listing})",
        as_found(left, context),
        "No single change of the config explains these shapes, so the tensors themselves were "
        "changed: pruned, cut, or taken from another model.",
        "take them from the source of the checkpoint, or fetch config.json and weights of one "
        "revision",
        {"tensors": len(left)},
    )


@rule("config.blocks", "Widths per block are given in one way", worst="warning")
def blocks(context: Context) -> Iterable[Finding]:
    """Nemotron-NAS (DeciLM) configs have no width at the top: intermediate_size is null, and each
    entry of block_configs has ffn.intermediate_size or ffn.ffn_mult, from which
    I = int(2·ffn_mult·H/3) rounded up to a multiple of 256 follows. Blocks with no_op have no MLP.
    Tools that read the top-level field fail, or take a default.

    Example: H = 16,384 and ffn_mult 1.95 give 21,299, rounded up 21,504; 4.875, 5.25, 31.40625 and
    39.0 give 53,248, 57,344, 343,040 and 425,984 exactly. Where a block has both spellings, the
    explicit width is the one that counts.
    """
    spec = context.spec
    entries = spec.config.get("block_configs")
    if family_of(spec).model_type != "nemotron-nas" or not isinstance(entries, list):
        return
    both = list(_disagreeing(spec.hidden_size, entries))
    if both:
        yield Finding(
            "config.blocks",
            "warning",
            f"{many(len(both), 'block')} with a width and an ffn_mult that disagree",
            tuple(
                Evidence(
                    f"block_configs[{i}].ffn",
                    f"intermediate_size {explicit}",
                    f"{derived}",
                    f"ffn_mult {mult}: int(2·{mult}·{spec.hidden_size}/3) up to 256s",
                )
                for i, explicit, mult, derived in both
            ),
            "One of the two is out of date. Tools differ in which they read.",
            "remove ffn_mult, or set it so that it gives the explicit width",
            {"blocks": len(both)},
        )
    if spec.config.get("intermediate_size") is None and context.checkpoint.kind != "gguf":
        count = Counter(
            x.mlp.intermediate_size if isinstance(x.mlp, GatedMLPSpec) else 0 for x in spec.layers
        )
        listing = ", ".join(
            f"{width or 'no MLP'} in {many(n, 'layer')}" for width, n in sorted(count.items())
        )
        yield Finding(
            "config.blocks",
            "note",
            f"the width is given per block: {listing}",
            (Evidence("intermediate_size", "null", "", context.source("config")),),
            "A tool that reads the top-level intermediate_size finds none.",
            "",
            {f"width.{width}": n for width, n in sorted(count.items())},
        )


def _disagreeing(hidden: int, entries: Sequence[Any]) -> Iterable[tuple[int, int, float, int]]:
    """(block, explicit width, ffn_mult, width that it gives) where the two differ."""
    for i, entry in enumerate(entries):
        ffn = entry.get("ffn") if isinstance(entry, dict) else None
        if not isinstance(ffn, dict):
            continue
        explicit, mult = ffn.get("intermediate_size"), ffn.get("ffn_mult")
        if isinstance(explicit, int) and isinstance(mult, int | float):
            derived = deci_width(hidden, mult)
            if derived != explicit:
                yield i, explicit, mult, derived
