"""From a GGUF's metadata to the config.json it was converted from, as far as tensors depend on it.

Each family says which keys it reads (`gguf_keys`) and what only its tensors show (`gguf_config`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateup.errors import ConfigError, UnknownArchitectureError
from gateup.model.config import MAX_DIM, MAX_LAYERS, Config
from gateup.model.families import FAMILIES, Family

Shapes = Mapping[str, tuple[int, ...]]

# Keys that are no whole numbers.
_FLOATS = frozenset(
    {
        "attention.layer_norm_rms_epsilon",
        "attention.layer_norm_epsilon",
        "rope.freq_base",
        "expert_weights_scale",
    }
)
_FLAGS = frozenset({"expert_weights_norm"})

# Keys every file of a family that maps them must have, with the config without them unreadable.
_REQUIRED = (
    "block_count",
    "embedding_length",
    "attention.head_count",
    "feed_forward_length",
    "expert_used_count",
    "attention.kv_lora_rank",
)

# A key some files lack -> the end of a tensor's name, and the axis (ggml order), that shows it.
_FROM_SHAPES = {
    "expert_count": ("ffn_up_exps.weight", 2),
    "expert_feed_forward_length": ("ffn_up_exps.weight", 1),
    "expert_shared_feed_forward_length": ("ffn_up_shexp.weight", 1),
}

# Families whose windows lie on some layers only, with llama.cpp's own pattern as their default.
_PATTERNED = frozenset({"gemma2", "gemma3_text", "gpt_oss"})


def config_from_gguf(metadata: Mapping[str, Any], shapes: Shapes, where: str) -> dict[str, Any]:
    """A config.json-like dict, with "architectures", that build_spec takes.

    metadata  the header's keys and values ("general.architecture", "llama.block_count", ...)
    shapes    ggml dimensions (ne[0] first) by tensor name; they show what no key says: the
              vocabulary's size, whether the head is tied, biases, which layers have experts
    where     the file, for errors

    Raises UnknownArchitectureError, and ConfigError naming the metadata key at fault.
    """
    cfg = Config(metadata, where)
    arch = cfg.text("general.architecture")
    family = _family(arch, metadata, shapes, where)
    config: dict[str, Any] = {
        "architectures": [family.architectures[0]],
        "model_type": family.model_type,
    }
    layers = cfg.integer(f"{arch}.block_count", high=MAX_LAYERS)
    for key, name in family.gguf_keys.items():
        value = _value(cfg, arch, key, layers, per_layer=family.model_type in _PER_LAYER)
        if value is None:
            value = _from_shapes(key, layers, shapes)
        if value is not None:
            config[name] = value
        elif key in _REQUIRED and not _dispensable(key, shapes, layers):
            raise _missing(f"{arch}.{key}", where)
    config["vocab_size"] = _vocab_size(cfg, arch, shapes)
    config["tie_word_embeddings"] = "output.weight" not in shapes
    if family.model_type in _PATTERNED:
        _apply_pattern(config, cfg, f"{arch}.attention.sliding_window_pattern", layers)
    if family.gguf_config:
        config = family.gguf_config(metadata, shapes, config)
    return config


_PER_LAYER = frozenset({"openelm", "nemotron-nas"})


def _family(arch: str, metadata: Mapping[str, Any], shapes: Shapes, where: str) -> Family:
    """The family a GGUF architecture stands for; llama and deepseek2 stand for several."""
    known = [f for f in FAMILIES.values() if f.gguf_arch == arch]
    if not known:
        raise UnknownArchitectureError(
            f"GGUF architecture {arch!r} is not one gateup knows",
            where=where,
            expected="one of " + ", ".join(sorted({f.gguf_arch or "" for f in FAMILIES.values()})),
        )
    if arch == "llama" and any(name.endswith(".ffn_gate_inp.weight") for name in shapes):
        return FAMILIES["mixtral"]
    if arch == "llama" and metadata.get("llama.expert_count"):
        return FAMILIES["mixtral"]
    if arch == "deepseek2" and any(name.endswith(".exp_probs_b.bias") for name in shapes):
        return FAMILIES["deepseek_v3"]
    return known[0]


def _value(cfg: Config, arch: str, key: str, layers: int, *, per_layer: bool) -> Any:
    """The checked value of one key, None where it is absent.

    An array holds one number per layer; where all are equal it is that number.
    """
    full = f"{arch}.{key}"
    if key in _FLOATS:
        return cfg.number(full, default=None)
    if key in _FLAGS:
        return cfg.flag(full, default=None)
    high = 1 << 40 if key in ("context_length", "attention.sliding_window") else MAX_DIM
    value = cfg.raw(full)
    if not isinstance(value, list | tuple):
        return cfg.integer(full, default=None, low=0, high=high)
    numbers = cfg.integers(full, length=layers, high=high)
    if len(set(numbers)) == 1:
        return numbers[0]
    if per_layer:
        return numbers
    raise ConfigError(
        f"{full} differs between layers: {numbers[0]} in layer 0, "
        f"{next(n for n in numbers if n != numbers[0])} in a later one",
        where=f"{cfg.where}, field {full}",
        expected=f"one number for all layers of a {arch} model",
    )


def _from_shapes(key: str, layers: int, shapes: Shapes) -> int | None:
    """The value as the first layer that has the tensor shows it."""
    if key not in _FROM_SHAPES:
        return None
    tensor, axis = _FROM_SHAPES[key]
    for i in range(layers):
        ne = shapes.get(f"blk.{i}.{tensor}")
        if ne is not None:
            return ne[axis] if len(ne) > axis else None
    return None


def _dispensable(key: str, shapes: Shapes, layers: int) -> bool:
    """Expert counts in a model without experts, the dense width in one without dense layers."""
    sparse = sum(f"blk.{i}.ffn_gate_inp.weight" in shapes for i in range(layers))
    if key == "expert_used_count":
        return sparse == 0
    return key == "feed_forward_length" and sparse == layers


def _missing(key: str, where: str) -> ConfigError:
    return ConfigError(
        f"{key} is missing",
        where=where,
        expected=f"a whole number under the metadata key {key}",
        remedy="convert the model again, or download the file again: its header is incomplete",
    )


def _vocab_size(cfg: Config, arch: str, shapes: Shapes) -> int:
    """Rows of the embedding: the metadata's vocab_size may be the tokenizer's, without padding."""
    ne = shapes.get("token_embd.weight")
    if ne is not None and len(ne) == 2:
        return ne[1]
    key = f"{arch}.vocab_size"
    if key not in cfg.values:
        raise _missing("token_embd.weight" if ne is None else key, cfg.where)
    size: int = cfg.integer(key)
    return size


def _apply_pattern(config: dict[str, Any], cfg: Config, key: str, layers: int) -> None:
    """`layer_types` where the file overrides the family's own pattern of windows.

    A number n: every n-th layer sees all keys; an array: true (or 1) for a window.
    """
    value = cfg.raw(key)
    if value is None:
        return
    if isinstance(value, list | tuple):
        if len(value) != layers or not all(isinstance(v, bool | int) for v in value):
            raise cfg.fault(key, value, f"an array of {layers} flags")
        windowed = [bool(v) for v in value]
    else:
        n = cfg.integer(key, low=0, high=MAX_LAYERS)
        windowed = [n == 0 or i % n < n - 1 for i in range(layers)]
    config["layer_types"] = ["sliding_attention" if w else "full_attention" for w in windowed]
