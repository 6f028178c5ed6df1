"""LoRA targets against a model's modules: what each name matches, and what it should have been."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from gateup.account.lora import CONVERTED, adapter_rows, module_name
from gateup.account.workload import LoRA
from gateup.errors import UsageError
from gateup.files.header import clip
from gateup.model.spec import ModelSpec, TensorSpec

# Names that families give to one job. A fused name stands in the row of each part it holds.
MEANINGS: tuple[tuple[str, ...], ...] = (
    ("q_proj", "wq", "query", "q_a_proj", "qkv_proj", "Wqkv", "query_key_value", "c_attn"),
    ("k_proj", "wk", "key", "kv_a_proj_with_mqa", "qkv_proj", "Wqkv", "query_key_value", "c_attn"),
    ("v_proj", "wv", "value", "kv_b_proj", "qkv_proj", "Wqkv", "query_key_value", "c_attn"),
    ("o_proj", "wo", "out_proj", "attn_out", "c_proj", "dense"),
    ("gate_proj", "w1", "ff_proj", "gate_up_proj", "proj_1", "linear_fc1"),
    ("up_proj", "w3", "gate_up_proj", "proj_1", "linear_fc1", "c_fc", "fc1"),
    ("down_proj", "w2", "ff_out", "proj_2", "linear_fc2", "c_proj", "fc2"),
    ("lm_head", "output", "embed_out"),
)

# Fused name -> the parts it holds, in the order of its rows.
FUSED = {"gate_up_proj": ("gate_proj", "up_proj"), "qkv_proj": ("q_proj", "k_proj", "v_proj")}

# A pattern from a file is run by a backtracking matcher. Five open or optional parts take at most
# 60^5 / 5! steps on a name of 60 characters, and 4 ms on real ones; a repeated group can take for
# ever. The patterns in use have up to five parts and no repeated group.
MAX_PATTERN = 1000
MAX_OPEN = 5
_OPEN = re.compile(r"(?<!\\)(?:[*+]|\{\d*,\d*\})|(?<![\\(*+}])\?")
_REPEATED_GROUP = re.compile(r"(?<!\\)\)(?:[*+]|\{)")


@dataclass(frozen=True, slots=True)
class Match:
    """What one target matches.

    pattern  the name, or the regular expression
    modules  how many linear modules it matches
    leaves   last parts of their names
    near     what it should have been, of the model's own names; () where it matched
    fault    why it is no regular expression; "" where it is one, or is a name
    """

    pattern: str
    modules: int
    leaves: tuple[str, ...]
    near: tuple[str, ...] = ()
    fault: str = ""


def leaf_of(name: str) -> str:
    return name.rpartition(".")[2]


def linear_modules(spec: ModelSpec) -> dict[str, TensorSpec]:
    """Modules that a LoRA target can mean: name -> row. Routed experts are no modules."""
    out = {}
    for row in spec.rows:
        weight = row.matmul or row.part == "embedding"
        if weight and not row.experts and len(row.shape) == 2 and row.name.endswith(".weight"):
            out[module_name(row)] = row
    return out


def leaves(spec: ModelSpec) -> list[str]:
    """The different last parts of the names that targets inside the layers can have: linear
    modules' in model order, then the experts' old ones where PEFT converts them."""
    inside = (leaf_of(n) for n, r in linear_modules(spec).items() if r.layer is not None)
    return list(dict.fromkeys([*inside, *CONVERTED.get(spec.family, {})]))


def match_targets(spec: ModelSpec, targets: str | Sequence[str]) -> list[Match]:
    """Each target by PEFT's rule: a name matches modules whose name is it or ends in ".name"; one
    string is a regular expression for the whole name. "all-linear" means all in the layers.
    """
    modules = linear_modules(spec)
    if isinstance(targets, str):
        if targets.lower() == "all-linear":
            inner = [n for n, r in modules.items() if r.layer is not None]
            return [Match(targets, len(inner), tuple(leaves(spec)))]
        broken = fault(targets)
        if broken:
            return [Match(targets, 0, (), (), broken)]
        found = _fullmatch(targets, modules)
        if found is None:
            return []
        if not found and targets.lower() == "all":  # LLaMA-Factory's word
            return [Match(targets, 0, (), ('"all-linear"',))]
        if not found and leaf_of(targets) in map(leaf_of, modules):  # a name, not an expression
            return [Match(targets, 0, (), (f'["{targets}"]',))]
        return [_match(spec, targets, found)]
    out = []
    for target in targets:
        found = [n for n in modules if n == target or n.endswith("." + target)]
        if not found:
            found = _elsewhere(spec, target)
        out.append(_match(spec, target, found))
    return out


def _match(spec: ModelSpec, pattern: str, found: list[str]) -> Match:
    names = tuple(dict.fromkeys(leaf_of(n) for n in found))
    return Match(pattern, len(found), names, () if found else nearest(spec, leaf_of(pattern)))


def _elsewhere(spec: ModelSpec, target: str) -> list[str]:
    """Names that mean no module of the spec's list, and something all the same: the experts' old
    names, which PEFT converts, and a head that is tied."""
    name = leaf_of(target)
    if name in CONVERTED.get(spec.family, {}):
        return [f"{r.name}.{name}" for r in spec.rows if r.experts and r.matmul]
    return [target] if name == "lm_head" and spec.tie_word_embeddings else []


def _fullmatch(pattern: str, names: Iterable[str]) -> list[str] | None:
    """Names that the pattern matches; None where it is not run (too long, could take for ever)."""
    if not is_bounded(pattern):
        return None
    compiled = re.compile(pattern)
    return [n for n in names if compiled.fullmatch(n)]


def is_bounded(pattern: str) -> bool:
    """Whether a pattern from a file ends soon on any name."""
    if len(pattern) > MAX_PATTERN or _REPEATED_GROUP.search(pattern):
        return False
    return len(_OPEN.findall(pattern)) <= MAX_OPEN


def is_run(pattern: str) -> bool:
    """Whether it can be run: bounded, and a regular expression."""
    return is_bounded(pattern) and not fault(pattern)


def fault(pattern: str) -> str:
    """What is wrong with a regular expression; "" where it compiles, or is too long to try."""
    if len(pattern) > MAX_PATTERN:
        return ""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        place = getattr(error, "pos", None)
        return str(getattr(error, "msg", error)) + (f" at character {place}" if place else "")
    return ""


def nearest(spec: ModelSpec, name: str) -> tuple[str, ...]:
    """The model's own names for what `name` means elsewhere; else the ones spelt like it."""
    own = leaves(spec)
    means = {n for group in MEANINGS if name in group for n in group}
    if means:
        return tuple(n for n in own if n in means and n != name)
    return tuple(get_close_matches(name, own, n=1, cutoff=0.6))


def fused_in(spec: ModelSpec, name: str) -> str | None:
    """The model's fused module that holds what `name` is elsewhere: gate_proj -> gate_up_proj."""
    own = leaves(spec)
    if name in own:
        return None
    return next((f for f, parts in FUSED.items() if name in parts and f in own), None)


def split_in(spec: ModelSpec, name: str) -> tuple[str, ...]:
    """The model's modules that `name` fuses elsewhere: gate_up_proj -> gate_proj, up_proj."""
    own = leaves(spec)
    parts = FUSED.get(name, ())
    return parts if parts and name not in own and all(p in own for p in parts) else ()


def lora_params(spec: ModelSpec, names: Iterable[str], rank: int) -> int:
    """Parameters of adapters of that rank on all modules so named; 0 for none."""
    own = tuple(dict.fromkeys(n for n in names if n in leaves(spec)))
    if not own:
        return 0
    try:
        return sum(r.params for r in adapter_rows(spec, LoRA(rank=rank, targets=own)))
    except UsageError:  # gate of the experts without up
        return 0


def shown(pattern: str) -> str:
    """A target as a message shows it: it may come from a file, of any length."""
    return pattern if pattern.isprintable() and len(pattern) <= 60 else clip(pattern, 60)
