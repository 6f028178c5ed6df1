"""adapter_config.json's other settings against the file: patterns, biases, tokens, DoRA."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gateup.checks.adapter_layer_rules import replicated
from gateup.checks.adapter_parts import Pair, pairs_of
from gateup.checks.adapter_targeting import pattern_key, targeting, texts
from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding
from gateup.checks.lora_targets import fault, is_run, linear_modules, shown
from gateup.checks.rule import rule
from gateup.checks.words import spans
from gateup.files.adapter import Adapter
from gateup.files.header import clip, listed, many
from gateup.model.spec import ModelSpec

PATTERNS = ("rank_pattern", "alpha_pattern")
STACKS = ("gate_up_proj", "down_proj")
BIASES = ("none", "all", "lora_only")
_LORA_BIAS = re.compile(r".*\.lora_(?:embedding_)?B(?:\.[^.]+)?\.bias")
_TOKENS = re.compile(r".*\.token_adapter\.trainable_tokens_delta(?:\.[^.]+)?")


def _adapter(context: Context) -> tuple[Adapter, tuple[Pair, ...]]:
    assert context.adapter is not None
    return context.adapter, pairs_of(context.spec, context.adapter, replicated(context))


@rule("adapter.patterns", "rank_pattern and alpha_pattern mean modules", needs=["adapter"])
def patterns(context: Context) -> Iterable[Finding]:
    """rank_pattern and alpha_pattern give modules a rank or an alpha of their own. A key is the end
    of a module's name, as a regular expression. One that means no adapted module is passed over
    with a warning, and r or lora_alpha holds there: another scale, or a size mismatch.

    Example: rank_pattern {"self_attn.gate_proj": 32}: gate_proj lies in mlp, the key means nothing.
    """
    _, found = _adapter(context)
    raw, file = context.adapter_config or {}, context.source("adapter")
    modules = [p.module for p in found]
    # Stacked experts are adapted as parameters, whose names the file does not keep.
    modules += [f"{p.module}.{n}" for p in found if p.experts for n in STACKS]
    for field in PATTERNS:
        value = raw.get(field)
        keys = [k for k in value if isinstance(k, str)] if isinstance(value, Mapping) else []
        broken = [(k, why) for k in keys if (why := fault(k))]
        if broken:
            yield Finding(
                "adapter.patterns",
                "error",
                f"{field} has {many(len(broken), 'key')} that "
                f"{'is' if len(broken) == 1 else 'are'} no regular expression",
                tuple(Evidence(f"{field}: {shown(k)}", why, "", file) for k, why in broken),
                "PEFT takes each key for a regular expression; building the adapter ends in "
                "Python's re.error.",
                "Write the end of a module's name.",
                {"broken": len(broken)},
            )
        idle = [k for k in keys if is_run(k) and not any(pattern_key([k], m) for m in modules)]
        if idle and found:
            names = list(dict.fromkeys(p.leaf for p in found))
            yield Finding(
                "adapter.patterns",
                "warning",
                f"{len(idle)} of {many(len(keys), 'key')} of {field} mean no adapted module: "
                f"{listed([shown(k) for k in idle], 4)}",
                tuple(
                    Evidence(f"{field}: {shown(k)}", "means nothing", listed(names, 8), file)
                    for k in idle
                ),
                "PEFT passes them over with a warning, and "
                f"{'r' if field == 'rank_pattern' else 'lora_alpha'} holds.",
                f"Write the end of a module's name: {listed(names, 8)}; or take the key out.",
                {"idle": len(idle), "keys": len(keys)},
            )


def _layer_settings(context: Context, raw: Mapping[str, Any]) -> Iterable[Evidence]:
    """layers_to_transform and layers_pattern, as PEFT's config takes them."""
    file, aim = context.source("adapter"), targeting(context)
    chosen, before = raw.get("layers_to_transform"), texts(raw, "layers_pattern")
    if isinstance(aim.targets, str):
        for key, value in (("layers_to_transform", chosen), ("layers_pattern", before)):
            if value is not None and value != ():
                yield Evidence(key, clip(value, 40), "target_modules as a list of names", file)
    elif before and chosen is None:
        yield Evidence("layers_pattern", clip(before, 40), "layers_to_transform beside it", file)


def _refused(context: Context, raw: Mapping[str, Any]) -> Iterable[Evidence]:
    """Values that PEFT stops at."""
    file = context.source("adapter")
    yield from _layer_settings(context, raw)
    bias = raw.get("bias")
    if bias is not None and bias not in BIASES:
        yield Evidence("bias", clip(bias, 40), "none, all or lora_only", file)
    dropout = raw.get("lora_dropout")
    number = isinstance(dropout, int | float) and not isinstance(dropout, bool)
    if dropout is not None and not (number and 0 <= dropout <= 1):
        yield Evidence("lora_dropout", clip(dropout, 40), "0 to 1", file)
    exclude = raw.get("exclude_modules")
    if isinstance(exclude, str) and (why := fault(exclude)):
        yield Evidence("exclude_modules", f"no regular expression: {why}", "", file)


@rule("adapter.settings", "PEFT takes every setting, and each has an effect", needs=["adapter"])
def settings(context: Context) -> Iterable[Finding]:
    """Settings that PEFT stops at, and settings that name nothing.

    Example: `target_modules: ".*_proj"` with `layers_to_transform: [0, 1]`. A regular expression
    says itself which layers it means; PEFT refuses the two together:

        ".*\\.layers\\.[01]\\..*_proj", or target_modules as a list of names
    """
    raw, file = context.adapter_config or {}, context.source("adapter")
    refused = list(_refused(context, raw))
    if refused:
        yield Finding(
            "adapter.settings",
            "error",
            f"{many(len(refused), 'setting')} that PEFT refuses: "
            f"{listed([e.subject for e in refused], 4)}",
            tuple(refused),
            "Loading the adapter ends in an exception before any weight is read.",
            "; ".join(f"{e.subject}: {e.expected or 'correct it'}" for e in refused) + ".",
            {"refused": len(refused)},
        )
    aim, have = targeting(context), context.spec.num_layers
    beyond = sorted(n for n in aim.layers or () if not 0 <= n < have)
    if beyond and len(beyond) < len(aim.layers or ()) and not replicated(context):
        yield Finding(
            "adapter.settings",
            "warning",
            f"layers_to_transform names {many(len(beyond), 'layer')} that the base does not have",
            (Evidence("layers_to_transform", spans(beyond), f"0 to {have - 1}", file),),
            "Numbers beyond the base's layers mean nothing: the adapter may be of another base.",
            "Take them out, or use the adapter with its own base.",
            {"beyond": len(beyond), "layers": have},
        )
    yield from _excludes_nothing(context)


def _excludes_nothing(context: Context) -> Iterable[Finding]:
    aim, file = targeting(context), context.source("adapter")
    names = linear_modules(context.spec)
    if not aim.exclude or not aim.decidable or aim.targets == ():
        return
    idle = [
        e
        for e in ([aim.exclude] if isinstance(aim.exclude, str) else aim.exclude)
        if not any(_excluded(e, n, whole=isinstance(aim.exclude, str)) for n in names)
    ]
    if idle:
        yield Finding(
            "adapter.settings",
            "note",
            f"exclude_modules names {listed([shown(e) for e in idle], 4)}, of which the base has "
            "nothing",
            tuple(Evidence("exclude_modules", shown(e), "a module's name", file) for e in idle),
            "It excludes nothing: the module is called otherwise, or belongs to a part (a vision "
            "tower) that is not here.",
            "",
            {"idle": len(idle)},
        )


def _excluded(pattern: str, name: str, *, whole: bool) -> bool:
    if whole:
        return re.fullmatch(pattern, name) is not None
    return name == pattern or name.endswith("." + pattern)


@rule("adapter.biases", "Biases in the file are those the config trains", needs=["adapter"])
def biases(context: Context) -> Iterable[Finding]:
    """LoRA can have a bias of its own on B (lora_bias), which PEFT drops without a word where the
    config does not say so, and starts at zero where the file has none.

    Example: lora_bias false, and q_proj.lora_B.bias [4096] in every layer: the biases are dropped.

    The base's own biases (bias: all, lora_only) are trained in place. Where the base has none, the
    setting does nothing.
    """
    adapter, found = _adapter(context)
    raw, file = context.adapter_config or {}, context.source("adapter")
    mine = [t for t in adapter.tensors if _LORA_BIAS.fullmatch(t.canonical or t.name)]
    wanted = raw.get("lora_bias") is True
    if mine and not wanted:
        yield Finding(
            "adapter.biases",
            "error",
            f"{many(len(mine), 'bias tensor')} of lora_B in the file, and lora_bias is not set",
            tuple(Evidence(t.name, "in the file", "lora_bias: true", file) for t in mine),
            "PEFT builds lora_B without a bias and drops them without a word.",
            "Set lora_bias to true in adapter_config.json.",
            {"biases": len(mine)},
        )
    elif wanted and found and not mine:
        yield Finding(
            "adapter.biases",
            "warning",
            "lora_bias is true, and the file has no bias of lora_B",
            (Evidence("lora_bias", "true", "lora_B.bias beside each lora_B.weight", file),),
            "They start at zero: what was trained there was not saved, or there was nothing.",
            "Save the adapter again with PEFT, or set lora_bias to false.",
        )
    if raw.get("bias") in ("all", "lora_only") and not _has_biases(context.spec):
        yield Finding(
            "adapter.biases",
            "note",
            f"bias is {raw['bias']}, and the base has no biases",
            (Evidence("bias", str(raw["bias"]), "none", file),),
            "There is nothing to train: the setting has no effect.",
        )


def _has_biases(spec: ModelSpec) -> bool:
    return any(r.name.endswith(".bias") for r in spec.rows)


@rule("adapter.tokens", "Tokens trained alone are in the file and in the base", needs=["adapter"])
def tokens(context: Context) -> Iterable[Finding]:
    """trainable_token_indices trains some rows of the embedding and stores them alone,
    token_adapter.trainable_tokens_delta [n, H]. PEFT stops where the file has none, where an index
    is beyond the vocabulary, and drops the rows where the config does not name any.

    Example: trainable_token_indices [32000, 32001] on Llama-2, whose last row is 31,999: two tokens
    were added in that run, and the base has to be resized to 32,002 rows first.
    """
    adapter, _ = _adapter(context)
    raw, file = context.adapter_config or {}, context.source("adapter")
    asked = _indices(raw.get("trainable_token_indices"))
    have = [t for t in adapter.tensors if _TOKENS.fullmatch(t.canonical or t.name)]
    vocab = context.spec.vocab_size
    beyond = sorted({i for i in asked if not 0 <= i < vocab})
    field = "trainable_token_indices"
    if beyond:
        yield Finding(
            "adapter.tokens",
            "error",
            f"{field} names {many(len(beyond), 'row')} beyond the base's {vocab:,}",
            (Evidence(field, spans(beyond), f"below {vocab:,}", f"{file}; vocab_size"),),
            "Tokens were added before the adapter was trained; PEFT stops with an IndexError.",
            f"Resize the base before loading: model.resize_token_embeddings({beyond[-1] + 1}), "
            "with the tokenizer of that run.",
            {"beyond": len(beyond), "vocab_size": vocab},
        )
    if asked and not have:
        yield Finding(
            "adapter.tokens",
            "error",
            f"{field} names {many(len(asked), 'row')}, and the file has none",
            (Evidence(field, many(len(asked), "row"), "trainable_tokens_delta", file),),
            "The rows were not saved; PEFT stops with a KeyError.",
            f"Save the adapter again, or take {field} out.",
            {"rows": len(asked)},
        )
    elif have and not asked:
        yield Finding(
            "adapter.tokens",
            "error",
            f"the file has rows of the embedding trained alone, and {field} is not set",
            tuple(Evidence(t.name, str(list(t.shape)), field, file) for t in have),
            "PEFT drops them without a word.",
            f"Write the tokens' indices into {field}: the config of that run has them.",
            {"tensors": len(have)},
        )
    rows = {t.name: t for t in have if asked and t.shape and t.shape[0] != len(asked)}
    if rows and not isinstance(raw.get(field), Mapping):
        stored = next(iter(rows.values())).shape[0]
        yield Finding(
            "adapter.tokens",
            "error",
            f"{field} names {many(len(asked), 'row')}, the file has {stored}",
            tuple(
                Evidence(name, str(list(t.shape)), f"[{len(asked)}, …]", file)
                for name, t in rows.items()
            ),
            "The file and its config come from different runs.",
            "Take adapter_config.json and the weights from one run.",
            {"rows": len(asked)},
        )


def _indices(value: object) -> list[int]:
    """All indices of a list, or of an object with a list for each module."""
    lists = list(value.values()) if isinstance(value, Mapping) else [value]
    return [i for one in lists if isinstance(one, list) for i in one if type(i) is int]


@rule("adapter.dora", "DoRA's magnitudes and use_dora go together", needs=["adapter"])
def dora(context: Context) -> Iterable[Finding]:
    """DoRA splits a weight into direction, which the LoRA pair changes, and magnitude, one learnt
    number for each output. Without its magnitudes a DoRA adapter is another function; a plain
    LoRA loader that drops them gives wrong output without complaint.

    Example: use_dora false, and lora_magnitude_vector [14336] for every gate_proj in the file.
    """
    adapter, found = _adapter(context)
    have = [p for p in found if p.magnitude is not None]
    if adapter.use_dora and found and len(have) < len(found):
        missing = [p for p in found if p.magnitude is None]
        yield Finding(
            "adapter.dora",
            "error",
            f"use_dora is true, and {len(missing)} of {many(len(found), 'adapted module')} have no "
            "magnitude",
            tuple(
                Evidence(
                    p.module, "A and B", "A, B, lora_magnitude_vector", context.source("adapter")
                )
                for p in missing
            ),
            "The magnitudes were not saved: they would start again from the base's.",
            "Save the adapter again with PEFT, or set use_dora to false if it was trained so.",
            {"missing": len(missing)},
        )
    elif have and not adapter.use_dora:
        yield Finding(
            "adapter.dora",
            "error",
            f"{many(len(have), 'magnitude vector')} in the file, and use_dora is not set",
            tuple(
                Evidence(
                    p.module, "lora_magnitude_vector", "use_dora: true", context.source("adapter")
                )
                for p in have
            ),
            "Loaded as plain LoRA the magnitudes are dropped, which is another function.",
            "Set use_dora to true in adapter_config.json.",
            {"magnitudes": len(have)},
        )
    wrong = [p for p in have if _magnitude_wrong(context.spec, p)]
    if wrong:
        yield Finding(
            "adapter.dora",
            "error",
            f"{many(len(wrong), 'magnitude vector')} of another size than the module's outputs",
            tuple(
                Evidence(
                    p.module,
                    str(list(p.magnitude.shape)) if p.magnitude else "",
                    f"[{(p.wanted(context.spec) or (0, 0))[1]}]",
                )
                for p in wrong
            ),
            "DoRA has one magnitude for each output row.",
            "Take the adapter with its own base.",
            {"wrong": len(wrong)},
        )


def _magnitude_wrong(spec: ModelSpec, p: Pair) -> bool:
    wanted = p.wanted(spec)
    return p.magnitude is not None and wanted is not None and p.magnitude.shape != (wanted[1],)
