"""Which edit of config.json would make it describe the files: found by trial, not by opinion.

Candidates come from the numbers: where a described axis of n·v is found as n·w, the field that
says v might say w. A candidate counts only if the headers matched against the changed description
leave no shape over.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateup.errors import GateupError
from gateup.files.checkpoint import Checkpoint
from gateup.files.header import TensorHeader
from gateup.files.match import match_gguf, match_hf
from gateup.files.mismatch import Mismatch
from gateup.model.config import whole
from gateup.model.families import build_spec
from gateup.model.spec import ModelSpec, MoESpec

# Fields that set a tensor's shape, in the spellings of the families.
SIZES = (
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "intermediate_size_mlp",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "n_shared_experts",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "n_embd",
    "n_inner",
)
LAYERS = ("num_hidden_layers", "n_layer", "num_transformer_layers")
FLAGS = ("tie_word_embeddings", "mlp_bias", "attention_bias", "use_bias", "qkv_bias")
MAX_EDITS = 3
# Headers matched in all trials together: 0.6 s. A model of 723 tensors gets 80 trials.
MAX_MATCHED = 60_000
# What multi-token prediction adds to its layer; such layers are not part of num_hidden_layers.
PREDICTION = re.compile(r"\.(?:eh_proj|enorm|hnorm|shared_head|mtp)\b|(?:^|\.)mtp\.|nextn")
LAYER = re.compile(r"(?:^|\.)(?:layers|blk|h)\.(\d{1,6})\.")

Value = int | bool


@dataclass(frozen=True)
class Edit:
    """Fields to change and what remains different afterwards.

    changes  field -> (what config.json says, None where it is silent; what fits)
    """

    changes: Mapping[str, tuple[Value | None, Value]]
    mismatches: tuple[Mismatch, ...]


def find_edit(checkpoint: Checkpoint) -> Edit | None:
    """The fewest fields (up to 3) whose change leaves no shape different; None without such."""
    current = checkpoint.mismatches
    if not checkpoint.headers or not _weight(current):
        return None
    config = dict(checkpoint.spec.config)
    changes: dict[str, tuple[Value | None, Value]] = {}
    spec = checkpoint.spec
    kept = tuple(m for m in current if m.kind in ("note", "adapter", "unlisted", "misplaced"))
    trials = max(4, MAX_MATCHED // len(checkpoint.headers))
    for _ in range(MAX_EDITS):
        best: tuple[int, str, Value, tuple[Mismatch, ...], ModelSpec] | None = None
        for key, value in _candidates(spec, config, current, checkpoint.headers):
            if trials == 0:
                break
            trials -= 1
            tried = _try(checkpoint, {**config, key: value})
            if tried is None:
                continue
            weight = _weight(tried[1])
            if weight < (best[0] if best else _weight(current)):
                best = (weight, key, value, tried[1], tried[0])
        if best is None:
            break
        weight, key, value, current, spec = best
        changes[key] = (_said(checkpoint.spec.config.get(key)), value)
        config[key] = value
        if not weight:
            break
    if not changes or any(m.kind == "shape" for m in current) or _one_shard(changes):
        return None
    return Edit(changes, kept + current)


def _one_shard(changes: Mapping[str, tuple[Value | None, Value]]) -> bool:
    """Whether every field is divided by one number: that is a rank's share, not an edit."""
    ratios = {old / new for old, new in changes.values() if old and new}
    return len(changes) > 1 and len(ratios) == 1 and ratios.pop() in (2, 4, 8, 16)


def _said(value: Any) -> Value | None:
    return value if isinstance(value, int) else None


def _try(
    checkpoint: Checkpoint, config: dict[str, Any]
) -> tuple[ModelSpec, tuple[Mismatch, ...]] | None:
    """(description, differences) under a changed config; None where that cannot be."""
    try:
        spec = build_spec(config, where="a trial", name=checkpoint.spec.name)
        if checkpoint.kind == "gguf":
            return spec, match_gguf(spec, checkpoint.headers).mismatches
        return spec, match_hf(spec, checkpoint.headers).mismatches
    except GateupError:
        return None


def _weight(mismatches: tuple[Mismatch, ...]) -> int:
    """How many tensors and rows are at fault."""
    wanted = ("shape", "absent", "partly", "doubled", "beyond", "unknown")
    return sum(len(m.tensors) or len(m.rows) for m in mismatches if m.kind in wanted)


def _candidates(
    spec: ModelSpec,
    config: Mapping[str, Any],
    mismatches: tuple[Mismatch, ...],
    headers: tuple[TensorHeader, ...],
) -> Iterator[tuple[str, Value]]:
    """(field, value) worth trying, likelier ones first."""
    pairs: Counter[tuple[int, int]] = Counter()
    for m in mismatches:
        for tensor, expected in zip(m.tensors, m.expected, strict=False):
            if len(tensor.shape) == len(expected):
                pairs.update(p for p in zip(expected, tensor.shape, strict=True) if p[0] != p[1])
    seen = set()
    for (was, found), _ in pairs.most_common(12):
        for key in SIZES:
            value = _size(spec, config, key)
            if not value or was % value or found % (was // value):
                continue
            new = found // (was // value)
            if new and new != value and (key, new) not in seen:
                seen.add((key, new))
                yield key, new
    kinds = {m.kind for m in mismatches}
    layers = _layers(headers)
    if kinds & {"absent", "beyond"} and layers and layers != spec.num_layers:
        yield from ((key, layers) for key in LAYERS if key in config)
    # Where not even the embedding is there, the names are others and no flag is at fault.
    named = not any(r.part == "embedding" for m in mismatches if m.kind == "absent" for r in m.rows)
    if named and kinds & {"absent", "unknown"}:
        yield from ((key, not config.get(key, False)) for key in FLAGS if _worth(key, config))


def _worth(key: str, config: Mapping[str, Any]) -> bool:
    """Flags that the config has, and the two that many leave out."""
    return isinstance(config.get(key), bool) or (
        key in ("mlp_bias", "attention_bias", "tie_word_embeddings") and config.get(key) is None
    )


def _layers(headers: tuple[TensorHeader, ...]) -> int | None:
    """Layers that the files number; None where some of them are for multi-token prediction."""
    highest = -1
    for t in headers:
        match = LAYER.search(t.name)
        if match:
            if PREDICTION.search(t.name):
                return None
            highest = max(highest, int(match[1]))
    return highest + 1


def _size(spec: ModelSpec, config: Mapping[str, Any], key: str) -> int | None:
    """The number a field stands for, also where the config leaves it to its default."""
    value = config.get(key)
    if whole(value):
        return value
    if value is not None:
        return None
    attention = next((x.attention for x in spec.layers if x.attention), None)
    if attention and key == "num_key_value_heads":
        return attention.num_kv_heads
    if attention and key == "head_dim":
        return attention.head_dim
    mlp = spec.layers[0].mlp if spec.layers else None
    if key == "n_inner" and mlp and not isinstance(mlp, MoESpec):
        return mlp.intermediate_size
    return None
