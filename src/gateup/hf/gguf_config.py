"""From a GGUF's metadata to the config that transformers builds a model from.

`gateup.model` reads what tensors depend on; here is what only the computation needs: rotary
scaling, soft caps, attention scale, routing weights, special tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateup.errors import ConfigError, InputError
from gateup.files.checkpoint import Checkpoint
from gateup.model.config import Config
from gateup.model.families.gemma import GEMMA2_SOFTCAPS, GEMMA_27B_LAYERS
from gateup.model.gguf_rope import gguf_rope_scaling

Numbers = Callable[[str], "list[float]"]

# config keys that llama.cpp fixes in its code or keeps under a key of its own (metadata key,
# default); by model_type [source: llama.cpp's loaders of these architectures].
_CAPS: Mapping[str, Mapping[str, tuple[str, float | None]]] = {
    "gemma2": {
        "attn_logit_softcapping": ("attn_logit_softcapping", GEMMA2_SOFTCAPS[0]),
        "final_logit_softcapping": ("final_logit_softcapping", GEMMA2_SOFTCAPS[1]),
    },
    "gemma3_text": {"final_logit_softcapping": ("final_logit_softcapping", None)},
}
_FIXED: Mapping[str, Mapping[str, Any]] = {
    "qwen3_moe": {"norm_topk_prob": True},
    "qwen2_moe": {"norm_topk_prob": False},
}
_TOKENS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
# Tokens that end a turn beside the end of text.
_ENDS = ("eos", "eot", "eom")


def config_of(checkpoint: Checkpoint, numbers: Numbers) -> dict[str, Any]:
    """Keyword arguments of transformers' config, "model_type" among them.

    numbers  the values of a small float32 tensor of the file, by its name
    Raises ConfigError naming the metadata key at fault.
    """
    spec, where = checkpoint.spec, str(checkpoint.path)
    cfg, arch = Config(checkpoint.metadata, where), checkpoint.metadata["general.architecture"]
    config = {k: v for k, v in spec.config.items() if k not in ("rope_scaling", "rope_theta")}
    kind = config["model_type"]
    config.update(_FIXED.get(kind, {}))
    for name, (key, default) in _CAPS.get(kind, {}).items():
        config[name] = cfg.number(f"{arch}.{key}", default=default)
    attention = next((layer.attention for layer in spec.layers if layer.attention), None)
    if kind in GEMMA_27B_LAYERS and attention is not None:
        wide = spec.num_layers == GEMMA_27B_LAYERS[kind]
        scalar = spec.hidden_size // attention.num_heads if wide else attention.head_dim
        config["query_pre_attn_scalar"] = scalar
    config.update(_rope(cfg, arch, spec.config, numbers, attention.head_dim if attention else 0))
    config.update(_tokens(cfg, spec.vocab_size))
    return config


def _tokens(cfg: Config, vocab: int) -> dict[str, int | None]:
    return {
        name: _token(cfg, f"tokenizer.ggml.{key}_token_id", vocab) for name, key in _TOKENS.items()
    }


def _token(cfg: Config, key: str, vocab: int) -> int | None:
    number: int | None = cfg.integer(key, default=None, low=0, high=(1 << 32) - 1)
    # Converters write 2^32 - 1 for "none".
    return number if number is None or number < vocab else None


def end_tokens(checkpoint: Checkpoint) -> list[int]:
    """Tokens at which generation ends, each once."""
    cfg = Config(checkpoint.metadata, str(checkpoint.path))
    vocab = checkpoint.spec.vocab_size
    found = (_token(cfg, f"tokenizer.ggml.{end}_token_id", vocab) for end in _ENDS)
    return list(dict.fromkeys(t for t in found if t is not None))


def _rope(
    cfg: Config, arch: str, spec_config: Mapping[str, Any], numbers: Numbers, head_dim: int
) -> dict[str, Any]:
    """rope_theta and rope_scaling, as config.json files write them."""
    out: dict[str, Any] = {"rope_theta": float(spec_config.get("rope_theta", 10000.0))}
    kind = spec_config["model_type"]
    width = cfg.integer(f"{arch}.rope.dimension_count", default=head_dim)
    if width != head_dim:
        if kind != "phi3":
            raise ConfigError(
                f"{arch}.rope.dimension_count is {width}, heads have {head_dim} dimensions",
                where=f"{cfg.where}, key {arch}.rope.dimension_count",
                expected=f"{head_dim}: {kind} models rotate whole heads",
            )
        out["partial_rotary_factor"] = width / head_dim
    scaling = _scaling(cfg, arch, spec_config, numbers)
    if scaling:
        out["rope_scaling"] = scaling
    if scaling and "original_max_position_embeddings" in scaling and kind == "phi3":
        out["original_max_position_embeddings"] = scaling["original_max_position_embeddings"]
    if kind == "gemma3_text":
        out["rope_local_base_freq"] = cfg.number(f"{arch}.rope.freq_base_swa", default=10000.0)
    return out


def _scaling(
    cfg: Config, arch: str, spec_config: Mapping[str, Any], numbers: Numbers
) -> dict[str, Any] | None:
    said = spec_config.get("rope_scaling") or {}
    if said.get("rope_type") == "longrope":
        return _longrope(cfg, f"{arch}.rope.scaling.", numbers)
    return gguf_rope_scaling(cfg, arch)


def _longrope(cfg: Config, prefix: str, numbers: Numbers) -> dict[str, Any]:
    out: dict[str, Any] = {
        "rope_type": "longrope",
        "long_factor": numbers("rope_factors_long.weight"),
        "short_factor": numbers("rope_factors_short.weight"),
        "original_max_position_embeddings": cfg.integer(
            prefix + "original_context_length", high=1 << 40
        ),
    }
    attention = cfg.number(prefix + "attn_factor", default=None)
    return out if attention is None else out | {"attention_factor": attention}


def check_families(kind: str, known: Sequence[str], where: str) -> None:
    """InputError unless models of this model_type can be loaded."""
    if kind not in known:
        raise InputError(
            f"GGUF models of the {kind} family cannot be loaded in place yet",
            where=where,
            expected="one of " + ", ".join(known),
            remedy="AutoModelForCausalLM.from_pretrained(folder, gguf_file=name) dequantises it,"
            " where transformers knows the family",
        )
