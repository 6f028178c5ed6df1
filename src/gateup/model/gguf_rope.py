"""Rotary scaling as a GGUF's metadata says it, in config.json's words.

Llama 3's factors and longrope's are tables kept as tensors; their readers are elsewhere.
"""

from __future__ import annotations

import math
from typing import Any

from gateup.errors import ConfigError
from gateup.model.config import Config


def gguf_rope_scaling(cfg: Config, arch: str) -> dict[str, Any] | None:
    """rope_scaling of a GGUF file; None where positions are not scaled by a formula.

    cfg   the metadata, with its full keys
    arch  general.architecture

    `attn_factor` multiplies YaRN's own 1 + 0.1·ln(factor), whereas attention_factor of
    config.json takes its place. [source: llama.cpp's context and its ggml_rope]

    Raises ConfigError for a scaling without the factor it needs, or of an unknown type.
    """
    head = f"{arch}.rope.scaling."
    kind = cfg.text(head + "type", default="none")
    # Older files have the linear factor alone, under another name.
    factor = cfg.number(head + "factor", f"{arch}.rope.scale_linear", default=None)
    if kind in ("none", "linear"):
        return {"rope_type": "linear", "factor": factor} if factor not in (None, 0.0, 1.0) else None
    if kind == "longrope":
        return None
    if kind != "yarn" or not factor:
        raise ConfigError(
            f"rotary scaling {kind!r} with factor {factor} is not one that can be computed here",
            where=f"{cfg.where}, key {head}type",
            expected="none, linear or yarn with a factor, or tables of factors",
        )
    out = {"rope_type": "yarn", "factor": factor}
    attention = cfg.number(head + "attn_factor", default=None)
    if attention is not None:
        attention *= 1.0 + 0.1 * math.log(max(factor, 1.0))
    optional = {
        "original_max_position_embeddings": cfg.integer(
            head + "original_context_length", default=None, high=1 << 40
        ),
        "attention_factor": attention,
        "beta_fast": cfg.number(head + "yarn_beta_fast", default=None),
        "beta_slow": cfg.number(head + "yarn_beta_slow", default=None),
    }
    return out | {key: value for key, value in optional.items() if value is not None}
