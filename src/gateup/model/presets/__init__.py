"""Known models by name: their configs, each with the place its numbers were checked against.

A config here holds the fields that sizes, windows and rope tables depend on, under the names of
the published config.json. The data lies beside this file, one JSON list per family.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateup.errors import UsageError
from gateup.model.families import build_spec
from gateup.model.spec import ModelSpec

# Words in a model's name that say how it was tuned, not how large it is.
_TUNING = frozenset({"instruct", "chat", "it", "hf", "base", "pt"})


@dataclass(frozen=True)
class Preset:
    """One known model.

    hub_id   owner/name on the Hub
    source   where the config's numbers were checked
    aliases  further names people use, in normal form
    """

    name: str
    hub_id: str
    config: Mapping[str, Any]
    source: str
    aliases: tuple[str, ...] = ()


def _key(name: str) -> str:
    """Names compare without case, owner and the kind of separator: Llama_3.1:8B, llama-3-1-8b."""
    name = name.rsplit("/", 1)[-1].strip().lower()
    key = re.sub(r"[\s_.:-]+", "-", name).strip("-")
    return re.sub(r"^([a-z]+)(\d)", r"\1-\2", key)  # llama3-8b, gpt2, qwen2.5-7b


def _without_tuning(key: str) -> str:
    return "-".join(word for word in key.split("-") if word not in _TUNING)


def _load() -> Iterator[Preset]:
    for path in sorted(Path(__file__).parent.glob("*.json")):
        for entry in json.loads(path.read_text(encoding="utf-8")):
            yield Preset(
                entry["name"],
                entry["hub_id"],
                entry["config"],
                entry["source"],
                tuple(entry["aliases"]),
            )


PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _load()}


def _index() -> dict[str, Preset]:
    index: dict[str, Preset] = {}
    for preset in PRESETS.values():
        for name in (preset.name, preset.hub_id, *preset.aliases):
            for key in (_key(name), _without_tuning(_key(name))):
                index.setdefault(key, preset)
    # A preset's own name always means that preset.
    index.update({_key(preset.name): preset for preset in PRESETS.values()})
    return index


_BY_KEY = _index()


def find(name: str) -> Preset | None:
    """The preset called `name`: any case, "_" or "-", with or without owner and "-instruct".

    None where there is none; the demo model "smollm2" is a file, not a preset.
    """
    key = _key(name)
    return _BY_KEY.get(key) or _BY_KEY.get(_without_tuning(key))


def suggest(name: str) -> list[str]:
    """Up to three preset names that `name` may have meant, nearest first."""
    close = difflib.get_close_matches(_without_tuning(_key(name)), _BY_KEY, n=9, cutoff=0.6)
    return list(dict.fromkeys(_BY_KEY[key].name for key in close))[:3]


def spec(name: str) -> ModelSpec:
    """The preset's ModelSpec. Raises UsageError with suggestions where the name is unknown."""
    preset = find(name)
    if preset is None:
        near = suggest(name)
        raise UsageError(
            f"{name!r} is not a preset",
            expected="one of " + ", ".join(sorted(PRESETS)),
            remedy="did you mean " + " or ".join(near) + "?" if near else None,
        )
    return build_spec(preset.config, where=f"preset {preset.name}", name=preset.name)
