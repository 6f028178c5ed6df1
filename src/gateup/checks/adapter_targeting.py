"""Which modules an adapter_config.json makes PEFT adapt: targets, exclusions, chosen layers.

The rules are PEFT's [0.21.2, tuners_utils.check_target_module_exists, utils.other.get_pattern_key].
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gateup.checks.adapter_parts import Pair
from gateup.checks.context import Context
from gateup.checks.lora_targets import is_run, linear_modules
from gateup.files.adapter import Adapter
from gateup.model.spec import ModelSpec

_NUMBER = re.compile(r".*?\.[^.]*\.(\d{1,6})\.")


@dataclass(frozen=True)
class Targeting:
    """What decides whether a module is adapted.

    targets   names (matched as endings), one regular expression, "all-linear", or None: PEFT's
              own table decides
    exclude   names or one regular expression, of modules left out
    saved     modules trained whole, which are never adapted
    layers    numbers of the layers to adapt; None: all
    patterns  what stands before a layer's number; (): anything
    parameters  target_parameters: stacked parameters that are adapted beside the modules
    """

    targets: tuple[str, ...] | str | None
    exclude: tuple[str, ...] | str = ()
    saved: tuple[str, ...] = ()
    layers: frozenset[int] | None = None
    patterns: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()

    @property
    def everything(self) -> bool:
        return isinstance(self.targets, str) and self.targets.lower() == "all-linear"

    @property
    def decidable(self) -> bool:
        """Whether it can be told without PEFT: a table of its own, and regular expressions that
        could take for ever, are not followed."""
        texts = [t for t in (self.targets, self.exclude) if isinstance(t, str)]
        return self.targets is not None and all(map(is_run, texts))

    def hits(self, name: str, linear: Iterable[str] = ()) -> bool:
        """Whether the module of that name is adapted. linear: what "all-linear" means."""
        if _is_excluded(self.exclude, name) or any(_holds(name, s) for s in self.saved):
            return False
        if self.everything:
            return name in linear
        if isinstance(self.targets, str):
            return re.fullmatch(self.targets, name) is not None
        return _ends(name, self.targets or ()) and self._in_layers(name)

    def _in_layers(self, name: str) -> bool:
        if self.layers is None:
            return True
        number = None
        if not self.patterns:
            found = _NUMBER.match(name)
            number = found[1] if found else None
        for pattern in self.patterns:
            found = re.match(rf"(?:^|.*?\.){re.escape(pattern)}\.(\d{{1,6}})\.", name)
            if found:
                number = found[1]
                break
        return number is not None and int(number) in self.layers


def targeting(context: Context) -> Targeting:
    """The adapter's. Values of a wrong kind count as not there."""
    raw, adapter = context.adapter_config or {}, context.adapter
    assert adapter is not None
    exclude = raw.get("exclude_modules")
    layers = raw.get("layers_to_transform")
    numbers = [layers] if type(layers) is int else layers if isinstance(layers, list) else []
    whole = frozenset(n for n in numbers if type(n) is int)
    return Targeting(
        adapter.target_modules,
        exclude if isinstance(exclude, str) else texts(raw, "exclude_modules"),
        adapter.modules_to_save,
        whole or None,
        texts(raw, "layers_pattern"),
        texts(raw, "target_parameters"),
    )


def texts(raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A setting that is one name or a list of names."""
    value = raw.get(key)
    if isinstance(value, str):
        return (value,) if value else ()
    if not isinstance(value, list):
        return ()
    return tuple(v for v in value if isinstance(v, str))


def _is_excluded(exclude: tuple[str, ...] | str, name: str) -> bool:
    if isinstance(exclude, str):
        return bool(exclude) and re.fullmatch(exclude, name) is not None
    return _ends(name, exclude)


def _ends(name: str, targets: Iterable[str]) -> bool:
    return any(name == t or name.endswith("." + t) for t in targets)


def _holds(name: str, part: str) -> bool:
    """Whether `part` is the module itself or one it lies in."""
    return f".{part}." in f".{name}."


def inner_linears(spec: ModelSpec) -> dict[str, str]:
    """What "all-linear" reaches: module -> row's name. Routers are no Linear in transformers 5."""
    return {
        n: r.name
        for n, r in linear_modules(spec).items()
        if r.layer is not None and not r.role.endswith("router")
    }


def pattern_key(patterns: Iterable[str], name: str) -> str | None:
    """The first key of rank_pattern or alpha_pattern that means the module: the end of its name,
    as a regular expression. None: none does. Keys that are not run are passed over."""
    for key in patterns:
        if is_run(key) and re.match(rf"(.*\.)?({key})$", name):
            return key
    return None


def wanted_rank(adapter: Adapter, p: Pair) -> int:
    """The rank that PEFT builds the module with."""
    key = pattern_key(adapter.rank_pattern, p.module)
    return adapter.rank if key is None else adapter.rank_pattern[key]
