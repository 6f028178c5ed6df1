"""Which layers see only a window of the keys: one entry per layer, None where all are seen.

Follows what transformers 5 builds its masks and caches from: `layer_types` where the config has
it, else each family's own rule.
"""

from __future__ import annotations

from collections.abc import Callable

from gateup.model.config import Config

Windows = list[int | None]
WindowRule = Callable[[Config, int], Windows]

MAX_WINDOW = 1 << 40


def window_size(cfg: Config, *, default: int | None = None) -> int | None:
    """`sliding_window`; null means none, `default` is the config class's for an absent key."""
    if "sliding_window" not in cfg.values:
        return default
    size: int | None = cfg.integer("sliding_window", default=None, high=MAX_WINDOW)
    return size


def layer_types(cfg: Config, layers: int) -> list[str] | None:
    """The config's `layer_types`, one per layer, or None where it has none."""
    types = cfg.raw("layer_types")
    if types is None:
        return None
    known = ("full_attention", "sliding_attention", "chunked_attention")
    if not isinstance(types, list) or len(types) != layers:
        raise cfg.fault("layer_types", types, f"a list of {layers} layer types")
    for i, kind in enumerate(types):
        if kind not in known:
            raise cfg.fault(f"layer_types[{i}]", kind, "one of " + ", ".join(known))
    return types


def by_layer(cfg: Config, layers: int, size: int | None, rule: Callable[[int], bool]) -> Windows:
    """`size` on the layers that `layer_types`, or else `rule`, makes sliding ones."""
    types = layer_types(cfg, layers)
    if size is None:
        return [None] * layers
    if types is not None:
        return [size if t == "sliding_attention" else None for t in types]
    return [size if rule(i) else None for i in range(layers)]


def no_windows(cfg: Config, layers: int) -> Windows:
    """Every layer sees every key, whatever the config says (Llama, OLMo 2, Granite)."""
    del cfg
    return [None] * layers


def on_every_layer(cfg: Config, layers: int) -> Windows:
    """One window for the whole model, where a size is written (Phi-3)."""
    return by_layer(cfg, layers, window_size(cfg), lambda i: True)
