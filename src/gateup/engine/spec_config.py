"""From a model's description to what its decoder computes.

Norms, biases and experts show in the description's rows; what no tensor shows (scales, caps,
rotary settings) is read from the config, or from the GGUF's metadata, by a table of families.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateup.engine.config import DecoderConfig, LayerConfig, MoEConfig, RopeConfig
from gateup.engine.rope import RopeScope, rope_config
from gateup.errors import UnknownArchitectureError
from gateup.files.checkpoint import Checkpoint
from gateup.model.config import Config
from gateup.model.families.gemma import GEMMA2_SOFTCAPS, GEMMA_27B_LAYERS
from gateup.model.gguf_rope import gguf_rope_scaling
from gateup.model.spec import AttentionSpec, GatedMLPSpec, LayerSpec, ModelSpec, MoESpec


@dataclass(frozen=True, slots=True)
class Family:
    """What sets one family's arithmetic apart; defaults are its config class's.

    theta, local_theta   rope_theta, and that of the layers with a window where it differs
    eps                  rms_norm_eps
    plus_one             norms multiply by 1 + weight in Hub files (GGUF files have the 1 in)
    embed_root           embeddings are multiplied by √hidden_size
    multipliers          Granite's four, by config.json key or GGUF key
    query_scalar         scores are divided by the root of query_pre_attn_scalar, not of head_dim
    softcaps             defaults of (attn_logit_softcapping, final_logit_softcapping)
    normalise            router weights of the kept experts are made to sum to 1; None: by
                         norm_topk_prob
    original             default of original_max_position_embeddings, where it is a key of its own
    permuted             the GGUF has rows of q and k ordered for neighbouring pairs
    no_rope              some layers go without positions (no_rope_layers)
    """

    theta: float = 1e4
    local_theta: float | None = None
    eps: float = 1e-6
    plus_one: bool = False
    embed_root: bool = False
    multipliers: bool = False
    query_scalar: bool = False
    softcaps: tuple[float | None, float | None] = (None, None)
    normalise: bool | None = True
    original: int | None = None
    permuted: bool = False
    no_rope: bool = False


_GEMMA = Family(plus_one=True, embed_root=True)
_GEMMA3 = replace(_GEMMA, theta=1e6, local_theta=1e4, query_scalar=True)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(permuted=True),
    "mistral": Family(permuted=True),
    "granite": Family(permuted=True, multipliers=True),
    "smollm3": Family(theta=2e6, permuted=True, no_rope=True),
    "qwen2": Family(),
    "qwen3": Family(),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, query_scalar=True, softcaps=GEMMA2_SOFTCAPS),
    "gemma3_text": _GEMMA3,
    "gemma3": _GEMMA3,
    "phi3": Family(eps=1e-5, original=4096),
    "mixtral": Family(theta=1e6, eps=1e-5, permuted=True),
    "qwen3_moe": Family(normalise=None),
}


def family_of(spec: ModelSpec) -> Family:
    """Raises UnknownArchitectureError where the engine has no decoder for the model."""
    found = FAMILIES.get(spec.family)
    if found is None:
        raise UnknownArchitectureError(
            f"gateup has no decoder for {spec.architecture}",
            where=spec.name,
            expected="a model of one of the families " + ", ".join(sorted(FAMILIES)),
            remedy="`gateup plan`, `show` and `check` know it; to run it use transformers or "
            "llama.cpp",
        )
    return found


def decoder_config(checkpoint: Checkpoint, context: int | None = None) -> DecoderConfig:
    """The decoder's configuration, its rotary frequencies for texts of at most `context` tokens.

    Factor tables that a GGUF keeps as tensors are not applied here (see loading.py).

    Raises UnknownArchitectureError, ConfigError.
    """
    spec = checkpoint.spec
    family = family_of(spec)
    trained = spec.max_position_embeddings or 2048  # of the first Llamas, which do not say
    context = context or trained
    gguf = checkpoint.kind == "gguf"
    cfg = _config(checkpoint)
    eps = cfg.number("rms_norm_eps", default=family.eps)
    ropes = _ropes(checkpoint, cfg, family, context)
    caps = _softcaps(cfg, family)
    multipliers = _multipliers(cfg, family)
    layers = tuple(
        _layer(spec, layer, rope, cfg, family, gguf=gguf)
        for layer, rope in zip(spec.layers, ropes, strict=True)
    )
    return DecoderConfig(
        family=spec.family,
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        layers=tuple(replace(x, softcap=caps[0]) for x in layers),
        context=context,
        norm_eps=eps,
        embedding_scale=spec.hidden_size**0.5
        if family.embed_root
        else multipliers["embedding_multiplier"],
        residual_scale=multipliers["residual_multiplier"],
        logit_scale=1.0 / multipliers["logits_scaling"],
        logit_softcap=caps[1],
    )


# GGUF key (without the architecture) -> config.json key, for what model/ has no use for.
_GGUF_KEYS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "attention.scale": "attention_multiplier",
    "rope.dimension_count": "rotary_dim",
    "rope.freq_base_swa": "rope_local_base_freq",
}


def _config(checkpoint: Checkpoint) -> Config:
    """config.json's keys; for a GGUF those that its metadata gives them."""
    values = dict(checkpoint.spec.config)
    if checkpoint.kind == "gguf":
        arch = checkpoint.metadata.get("general.architecture")
        for key, name in _GGUF_KEYS.items():
            value = checkpoint.metadata.get(f"{arch}.{key}")
            if value is not None:
                values[name] = value
        metadata = Config(checkpoint.metadata, str(checkpoint.path))
        values["rope_scaling"] = gguf_rope_scaling(metadata, str(arch))
        values.setdefault("rope_theta", 1e4)  # llama.cpp's default, whatever the family
    return Config(values, str(checkpoint.path))


def _softcaps(cfg: Config, family: Family) -> tuple[float | None, float | None]:
    """(of attention scores, of logits); null means none where the family has defaults."""
    out = []
    keys = ("attn_logit_softcapping", "final_logit_softcapping")
    for key, default in zip(keys, family.softcaps, strict=True):
        value = cfg.number(key, default=None) if key in cfg.values else default
        if key == "attn_logit_softcapping" and family.softcaps[0] is None:
            value = None  # Gemma 3's class has the key and does not use it
        out.append(value or None)
    return out[0], out[1]


def _multipliers(cfg: Config, family: Family) -> dict[str, float]:
    keys = ("embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier")
    if not family.multipliers:
        return dict.fromkeys(keys, 1.0)
    out = {key: cfg.number(key, default=1.0) for key in keys}
    if out["logits_scaling"] <= 0:
        raise cfg.fault("logits_scaling", out["logits_scaling"], "a number above 0")
    return out


def _layer(
    spec: ModelSpec,
    layer: LayerSpec,
    rope: RopeConfig | None,
    cfg: Config,
    family: Family,
    *,
    gguf: bool,
) -> LayerConfig:
    attn, mlp = layer.attention, layer.mlp
    if attn is None or not isinstance(mlp, GatedMLPSpec | MoESpec):
        raise UnknownArchitectureError(
            f"layer {layer.index} is not attention and a gated MLP", where=spec.name
        )
    roles = {row.role for row in spec.layer_rows(layer.index)}
    dense = mlp.expert if isinstance(mlp, MoESpec) else mlp
    moe = None
    if isinstance(mlp, MoESpec):
        normalise = family.normalise
        if normalise is None:
            normalise = cfg.flag("norm_topk_prob", default=gguf)
        moe = MoEConfig(mlp.num_experts, mlp.top_k, normalise)
    return LayerConfig(
        num_heads=attn.num_heads,
        num_kv_heads=attn.num_kv_heads,
        head_dim=attn.head_dim,
        rope=rope,
        window=attn.window,
        qk_norm="q_norm" in roles,
        scale=_scale(spec, attn, cfg, family, gguf=gguf),
        softcap=None,
        post_norm="pre_feedforward_layernorm" in roles,
        act=dense.act,
        width=dense.intermediate_size,
        moe=moe,
    )


def _scale(
    spec: ModelSpec, attn: AttentionSpec, cfg: Config, family: Family, *, gguf: bool
) -> float:
    """What scores are multiplied by."""
    if family.multipliers:
        return float(cfg.number("attention_multiplier", default=1.0))
    scalar = float(attn.head_dim)
    if family.query_scalar:
        if not gguf:
            scalar = cfg.number("query_pre_attn_scalar", default=256.0)
        elif spec.num_layers == GEMMA_27B_LAYERS.get(spec.family):
            scalar = spec.hidden_size / attn.num_heads
    if scalar <= 0:
        raise cfg.fault("query_pre_attn_scalar", scalar, "a number above 0")
    return float(scalar**-0.5)


def _ropes(
    checkpoint: Checkpoint, cfg: Config, family: Family, context: int
) -> list[RopeConfig | None]:
    """The frequencies of each layer."""
    spec = checkpoint.spec
    settings = {
        place: _settings(cfg, family, local=place == "sliding_attention")
        for place in ("full_attention", "sliding_attention")
    }
    made: dict[tuple[str, int], RopeConfig] = {}
    out: list[RopeConfig | None] = []
    for layer, local in zip(spec.layers, _local_layers(spec, cfg, family), strict=True):
        if not _has_rope(layer.index, cfg, family) or layer.attention is None:
            out.append(None)
            continue
        place = "sliding_attention" if local else "full_attention"
        key = (place, layer.attention.head_dim)
        if key not in made:
            scope = _scope(cfg, settings[place], family, layer.attention.head_dim, context, spec)
            made[key] = rope_config(settings[place], scope)
        out.append(made[key])
    return out


def _settings(cfg: Config, family: Family, *, local: bool) -> Config:
    """The rope settings of the full or the windowed layers, with rope_theta among them.

    rope_parameters (transformers 5) holds theta itself, and for Gemma 3 an object per kind of
    layer; rope_scaling (before it) holds for the full layers only.
    """
    theta_keys = ("rope_local_base_freq",) if local and family.local_theta else ("rope_theta",)
    default = family.local_theta if local and family.local_theta else family.theta
    found: dict[str, Any] = {}
    scaling = cfg.raw("rope_scaling", "rope_parameters")
    if isinstance(scaling, Mapping):
        nested = scaling.get("sliding_attention" if local else "full_attention")
        if isinstance(nested, Mapping):
            found = dict(nested)
        elif not (local and family.local_theta):
            found = dict(scaling)
    found.setdefault("rope_theta", cfg.raw(*theta_keys, default=default))
    return Config(found, cfg.where)


def _scope(
    cfg: Config, settings: Config, family: Family, head_dim: int, context: int, spec: ModelSpec
) -> RopeScope:
    theta = settings.number("rope_theta")
    if theta <= 1:
        raise settings.fault("rope_theta", theta, "a number above 1")
    part = settings.number(
        "partial_rotary_factor", default=cfg.number("partial_rotary_factor", default=1.0)
    )
    dim = cfg.integer("rotary_dim", default=int(head_dim * part))
    if dim % 2 or not 2 <= dim <= head_dim:
        raise cfg.fault("partial_rotary_factor", part, f"an even part of head_dim {head_dim}")
    original = None
    if family.original is not None:
        original = cfg.integer(
            "original_max_position_embeddings", default=family.original, high=1 << 40
        )
    trained = spec.max_position_embeddings or 2048
    return RopeScope(dim, theta, context, trained, original)


def _local_layers(spec: ModelSpec, cfg: Config, family: Family) -> list[bool]:
    """Which layers turn by local_theta: the windowed ones, also where the window is switched
    off (Gemma 3's five of six)."""
    if family.local_theta is None:
        return [False] * spec.num_layers
    types = cfg.raw("layer_types")
    if isinstance(types, list) and len(types) == spec.num_layers:
        return [t == "sliding_attention" for t in types]
    pattern = cfg.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return [(i + 1) % pattern != 0 for i in range(spec.num_layers)]


def _has_rope(index: int, cfg: Config, family: Family) -> bool:
    if not family.no_rope:
        return True
    if cfg.has("no_rope_layers"):
        return bool(cfg.integers("no_rope_layers", high=1)[index])
    interval: int = cfg.integer("no_rope_layer_interval", default=4)
    return (index + 1) % interval != 0


# Contexts longer than this are asked for, not taken: a cache of 131,072 positions of an 8B model
# is 17 GB.
DEFAULT_CONTEXT = 8192
_STRETCHED = ("linear", "dynamic", "yarn")


def longest_context(checkpoint: Checkpoint) -> int | None:
    """Positions that the model was made for, its rotary scaling included; None: it does not say.

    Some files count the scaling in max_position_embeddings, some do not: the larger is allowed.
    """
    trained = checkpoint.spec.max_position_embeddings
    if trained is None:
        return None
    cfg = _config(checkpoint)
    settings = _settings(cfg, family_of(checkpoint.spec), local=False)
    kind = settings.text("rope_type", "type", default="default")
    factor = settings.number("factor", default=1.0) if kind in _STRETCHED else 1.0
    return int(trained * max(1.0, factor))


def default_context(checkpoint: Checkpoint) -> int:
    """What is taken where nobody says: as made for, at most DEFAULT_CONTEXT; with longrope at most
    the original context, for which its short factors are."""
    trained = checkpoint.spec.max_position_embeddings or 2048
    family = family_of(checkpoint.spec)
    cfg = _config(checkpoint)
    original = None
    if family.original is not None:
        arch = checkpoint.metadata.get("general.architecture")
        key = f"{arch}.rope.scaling.original_context_length"
        original = checkpoint.metadata.get(key) or cfg.raw("original_max_position_embeddings")
    limits = [trained, DEFAULT_CONTEXT, *([original] if isinstance(original, int) else [])]
    return max(1, min(limits))
