"""The model that a trainer's file names: model_name_or_path and its like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateup.checks.trainer_files import is_open
from gateup.errors import GateupError
from gateup.files.config_json import read_json
from gateup.model import presets
from gateup.model.families import build_spec
from gateup.model.spec import ModelSpec

# LLaMA-Factory and transformers' scripts, axolotl, PEFT's adapter_config.json.
KEYS = ("model_name_or_path", "base_model", "base_model_name_or_path")


@dataclass(frozen=True)
class NamedModel:
    """A model as a trainer's file names it.

    key   the setting
    ref   its value: a path, or a name on the Hub
    path  where that lies here, None where it does not
    spec  of its config.json, or of the preset of that name; None: nothing is known
    known  the preset's name
    """

    key: str
    ref: str
    path: Path | None = None
    spec: ModelSpec | None = None
    known: str = ""


def name_in(values: Mapping[str, Any]) -> tuple[str, str] | None:
    """(key, value) of the model's name; None where there is none, or it is put in later."""
    for key in KEYS:
        value = values.get(key)
        if isinstance(value, str) and value.strip() and not is_open(value) and "\0" not in value:
            return key, value.strip()
    return None


def located(ref: str, folder: Path | None) -> Path | None:
    """Where a path lies: as seen from here, else from the folder of the file that names it."""
    try:
        here = Path(ref).expanduser()
        for path in (here, *([folder / here] if folder is not None else [])):
            if path.exists():
                return path
    except (OSError, RuntimeError, ValueError):  # too long a name; ~user without a home
        return None
    return None


def read_named(values: Mapping[str, Any], folder: Path | None) -> NamedModel | None:
    """What the settings name and what is known of it, from its config.json alone.

    folder  of the settings' file, None where they are no file
    """
    found = name_in(values)
    if found is None:
        return None
    key, ref = found
    path = located(ref, folder)
    if path is not None:
        return NamedModel(key, ref, path, _spec_at(path))
    preset = presets.find(ref)
    if preset is None:
        return NamedModel(key, ref)
    return NamedModel(key, ref, None, presets.spec(preset.name), preset.name)


def _spec_at(path: Path) -> ModelSpec | None:
    config = path / "config.json" if path.is_dir() else path.parent / "config.json"
    if not config.is_file():
        return None
    try:
        return build_spec(read_json(config), where=str(config), name=config.parent.name)
    except GateupError:  # what it names is another model than the one that is checked
        return None
