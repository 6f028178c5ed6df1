"""Adapters' targets against the base's modules and against what the file holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateup.account.lora import CONVERTED
from gateup.checks.adapter_layer_rules import replicated
from gateup.checks.adapter_parts import Pair, pairs_of
from gateup.checks.adapter_targeting import Targeting, inner_linears, targeting
from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding
from gateup.checks.lora_targets import (
    Match,
    leaf_of,
    leaves,
    linear_modules,
    lora_params,
    match_targets,
    shown,
)
from gateup.checks.rule import rule
from gateup.checks.words import in_layers
from gateup.files.header import listed, many


@rule("adapter.targets", "Every LoRA target matches a module", needs=["adapter"])
def targets(context: Context) -> Iterable[Finding]:
    """PEFT matches a target by the end of a module's name and complains only when no target at all
    matches: one without a hit is dropped in silence, and fewer weights train than were meant.

    Example: Llama's names on LLaDA, whose output projection is attn_out and whose MLP is ff_proj
    (gate), up_proj, ff_out (down).

        target_modules: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj
        no hit: o_proj (attn_out), gate_proj (ff_proj), down_proj (ff_out)

    The finding names the model's own module for each, and the parameters the right names add.
    """
    adapter = context.adapter
    assert adapter is not None
    place, patterns = (context.source("adapter"), "target_modules"), adapter.target_modules
    aim = targeting(context)
    if patterns is None or (not patterns and aim.parameters):
        return
    if not patterns:
        yield _no_targets(context)
        return
    matches = match_targets(context.spec, patterns)
    if not matches:
        yield _not_run(place, str(patterns))
        return
    found = pairs_of(context.spec, adapter, replicated(context))
    # Names in the file were trained: of another base, which is another rule's matter. One string
    # is no name.
    trained = set() if isinstance(patterns, str) else {p.leaf for p in found}
    unmatched = [
        m for m in matches if not m.modules and (m.fault or leaf_of(m.pattern) not in trained)
    ]
    if unmatched:
        yield unmatched_targets("adapter.targets", context, matches, unmatched, adapter.rank, place)
    elif (
        aim.decidable
        and not aim.parameters
        and any(m.modules for m in matches)
        and not _converted_names(context, patterns)
        and not _reaches(context, aim)
    ):
        yield _nothing_left(context, aim)


def _converted_names(context: Context, patterns: Sequence[str] | str) -> bool:
    """Whether a target is one of the old names that PEFT turns into parameters."""
    old = CONVERTED.get(context.spec.family, {})
    return not isinstance(patterns, str) and any(leaf_of(t) in old for t in patterns)


def unmatched_targets(
    rule_id: str,
    context: Context,
    matches: Sequence[Match],
    unmatched: Sequence[Match],
    rank: int,
    place: tuple[str, str],
) -> Finding:
    """The finding for targets without a hit. place: (file, field)."""
    spec = context.spec
    if unmatched[0].fault:
        return _no_expression(rule_id, context, unmatched[0], place)
    hits = [m for m in matches if m.modules]
    file, field = place
    names = listed([shown(m.pattern) for m in unmatched], 8)
    instead = [f"{' and '.join(m.near)} for {shown(m.pattern)}" for m in unmatched if m.near]
    now = lora_params(spec, (n for m in hits for n in m.leaves), rank)
    then = lora_params(spec, (n for m in matches for n in (*m.leaves, *m.near)), rank)
    gain = f": {then:,} trainable parameters at rank {rank} instead of {now:,}"
    return Finding(
        rule_id,
        "warning" if hits else "error",
        f"{len(unmatched)} of {many(len(matches), 'LoRA target')} without a match in {spec.name}: "
        f"{names}",
        tuple(
            Evidence(
                f"{field}: {shown(m.pattern)}",
                "matches no linear module",
                " and ".join(m.near),
                f"module names of {spec.family}",
            )
            for m in unmatched
        ),
        "PEFT complains only when no target at all matches; one without a hit is dropped in "
        "silence, and the weights it meant stay frozen."
        if hits
        else "None of the targets matches: PEFT refuses to build the adapter.",
        f"In {file}: write {', '.join(instead)}{gain if then > now else ''}."
        if instead
        else f"In {file}: take the model's own names from gateup show.",
        {
            "unmatched": len(unmatched),
            "targets": len(matches),
            "params_now": now,
            "params_then": then,
        },
    )


def _no_expression(rule_id: str, context: Context, match: Match, place: tuple[str, str]) -> Finding:
    """One string is taken for a regular expression, and this is none."""
    file, field = place
    own = ", ".join(leaves(context.spec)[:7])
    return Finding(
        rule_id,
        "error",
        f"{field} is no regular expression: {match.fault}",
        (Evidence(field, shown(match.pattern), "a regular expression, or a list of names", file),),
        "PEFT takes one string for a regular expression over whole module names, and this one does"
        " not compile: building the adapter ends in Python's re.error.",
        f"In {file}: correct it, or write names as a list: {own}.",
    )


def _no_targets(context: Context) -> Finding:
    own = ", ".join(leaves(context.spec)[:7])
    return Finding(
        "adapter.targets",
        "error",
        "target_modules is empty, and there are no target_parameters",
        (Evidence("target_modules", "[]", "names of modules", context.source("adapter")),),
        "PEFT refuses to build an adapter that adapts nothing.",
        f"Write the modules that the file holds: {_in_file(context) or own}.",
    )


def _in_file(context: Context) -> str:
    """Last parts of the names of the modules that the file adapts."""
    assert context.adapter is not None
    found = pairs_of(context.spec, context.adapter, replicated(context))
    return ", ".join(dict.fromkeys(p.leaf for p in found))


def _not_run(place: tuple[str, str], pattern: str) -> Finding:
    file, field = place
    return Finding(
        "adapter.targets",
        "note",
        f"{field} was not tried: as a regular expression it could run without end",
        (Evidence(field, shown(pattern), "a short expression, or a list of names", file),),
        "Expressions from files are run only up to a length and a number of open repetitions that "
        "end within milliseconds; whether this one matches is not known.",
        "A list of names says the same and can be checked.",
    )


def _nothing_left(context: Context, aim: Targeting) -> Finding:
    """Targets match, and what else the config says leaves none of them."""
    raw, file = context.adapter_config or {}, context.source("adapter")
    keys = ("exclude_modules", "layers_to_transform", "layers_pattern", "modules_to_save")
    said = [k for k in keys if raw.get(k) not in (None, [], {})]
    have = context.spec.num_layers
    layers = sorted(aim.layers or ())
    outside = [n for n in layers if n >= have]
    return Finding(
        "adapter.targets",
        "error",
        f"target_modules match, and {' and '.join(said)} leave nothing of them",
        tuple(
            Evidence(
                k,
                shown(str(raw[k])),
                f"layers 0 to {have - 1}" if k == "layers_to_transform" and outside else "",
                file,
            )
            for k in said
        ),
        "PEFT finds no module to adapt and refuses to build the adapter.",
        f"The model has layers 0 to {have - 1}: correct layers_to_transform."
        if outside
        else f"Take out of {file} what excludes the targets.",
        {"layers": have},
    )


@rule(
    "adapter.outside", "Every tensor in the file is of a module that is adapted", needs=["adapter"]
)
def outside(context: Context) -> Iterable[Finding]:
    """PEFT builds modules from adapter_config.json and then fills them from the file. Tensors of
    modules that target_modules does not name, that exclude_modules leaves out, or of layers that
    layers_to_transform leaves out have no place: they are dropped without a word, and a part of
    what was trained is lost.

    Example: target_modules ["q_proj"], and pairs for q_proj, v_proj, gate_proj and up_proj in each
    of 32 layers: 96 of 128 pairs are dropped. The config is of another run, or was edited.
    """
    aim, found, _ = _facts(context)
    mine = [p for p in found if p.row is not None and not _converted(context, aim, p)]
    if not aim.decidable or not mine:
        return
    linear = inner_linears(context.spec)
    rows = set(linear.values())
    lost = [
        p
        for p in mine
        if not aim.hits(p.module, linear)
        and not (aim.everything and p.row and p.row.name in rows and not p.experts)
    ]
    if not lost or not _reaches(context, aim):
        return  # nothing at all is adapted: adapter.targets says so
    names = list(dict.fromkeys(p.leaf for p in lost))
    layers = sorted({p.layer for p in lost if p.layer is not None})
    key, remedy = _why_outside(aim, lost)
    yield Finding(
        "adapter.outside",
        "error",
        f"{len(lost)} of {many(len(found), 'pair')} in the file are of modules that "
        f"adapter_config.json does not adapt: {listed(names, 8)}",
        tuple(
            Evidence(p.module, "A and B in the file", f"named by {key}", context.source("adapter"))
            for p in lost
        ),
        "PEFT builds only the modules that the config names and drops the other tensors without a "
        f"word{f' ({in_layers(layers)})' if layers else ''}: that part of the training is lost.",
        remedy,
        {"outside": len(lost), "pairs": len(found)},
    )


def _why_outside(aim: Targeting, lost: Sequence[Pair]) -> tuple[str, str]:
    """(the setting that leaves them out, what to do)."""
    names = list(dict.fromkeys(p.leaf for p in lost))
    open_ = Targeting(aim.targets, (), (), None)
    if not aim.everything and all(open_.hits(p.module) for p in lost):
        within = Targeting(aim.targets, (), (), aim.layers, aim.patterns)
        if not all(within.hits(p.module) for p in lost):
            return (
                "layers_to_transform",
                "Take layers_to_transform out of adapter_config.json, or add the layers to it: "
                + in_layers(p.layer for p in lost if p.layer is not None)
                + ".",
            )
        key = "modules_to_save" if any(aim.saved) and not aim.exclude else "exclude_modules"
        return key, f"Take {listed(names, 8)} out of {key} in adapter_config.json."
    if isinstance(aim.targets, tuple):
        both = [*aim.targets, *(n for n in names if n not in aim.targets)]
        text = ", ".join(f'"{shown(n)}"' for n in both[:12])
        if len(both) > 12:
            text += ", …"
        return (
            "target_modules",
            f"If the tensors are the right ones, write target_modules: [{text}] into "
            "adapter_config.json; otherwise take the config and the weights from one run.",
        )
    return (
        "target_modules",
        "Write target_modules as a list of the file's modules, with "
        f"{listed(names, 8)} in it, if the tensors are the right ones.",
    )


def _facts(context: Context) -> tuple[Targeting, tuple[Pair, ...], bool]:
    """(targeting, the file's pairs, whether all of them fit the base)."""
    assert context.adapter is not None
    found = pairs_of(context.spec, context.adapter, replicated(context))
    return targeting(context), found, all(p.fits(context.spec) for p in found)


def _converted(context: Context, aim: Targeting, p: Pair) -> bool:
    """Whether PEFT reaches it otherwise than by a module's name: experts, and routers beside
    them, as parameters."""
    if p.row is None or not (p.row.experts or p.experts or p.row.role.endswith("router")):
        return False
    return bool(aim.parameters) or context.spec.family in CONVERTED


def _reaches(context: Context, aim: Targeting) -> bool:
    """Whether the config adapts any module of the base, or of the file."""
    linear = inner_linears(context.spec)
    return any(aim.hits(n, linear) for n in (*linear_modules(context.spec), *_modules(context)))


def _modules(context: Context) -> list[str]:
    return [p.module for p in _facts(context)[1]]


@rule(
    "adapter.missing", "The file holds what the config adapts", needs=["adapter"], worst="warning"
)
def missing(context: Context) -> Iterable[Finding]:
    """The other way round: a module that target_modules means and the file has no pair for starts
    as an untrained one, B zero. PEFT warns ("Found missing adapter keys") and goes on.

    Example: 7 names in target_modules, pairs for layers 0 to 15 of 32: half of the adapter was
    left out when it was saved or merged. Where that is meant, layers_to_transform says it.
    """
    aim, found, fits = _facts(context)
    spec = context.spec
    if not aim.decidable or not found or not fits or replicated(context):
        return
    linear = inner_linears(spec)
    old = CONVERTED.get(spec.family, {})
    have = {p.row.name for p in found if p.row is not None}
    wanted = [
        n
        for n, row in linear_modules(spec).items()
        if aim.hits(n, linear) and not row.role.endswith("router") and leaf_of(n) not in old
    ]
    absent = [n for n in wanted if linear_modules(spec)[n].name not in have]
    if not absent:
        return
    names = list(dict.fromkeys(leaf_of(n) for n in absent))
    layers = [r.layer for n, r in linear_modules(spec).items() if n in set(absent)]
    inside = [n for n in layers if n is not None]
    yield Finding(
        "adapter.missing",
        "warning",
        f"{len(absent)} of {many(len(wanted), 'module')} that the config adapts have no tensors in "
        f"the file: {listed(names, 8)}",
        tuple(Evidence(n, "no A, no B", "a pair", context.source("adapter")) for n in absent),
        "PEFT gives them B = 0 and a warning: they add nothing"
        + (f" ({in_layers(inside)})." if inside else "."),
        "Save the adapter again if they were trained; otherwise say what was, in target_modules "
        "or layers_to_transform.",
        {"absent": len(absent), "wanted": len(wanted)},
    )
