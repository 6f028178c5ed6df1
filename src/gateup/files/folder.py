"""What kind of model a folder or file holds, decided by names alone, before anything is opened."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from gateup.errors import InputError
from gateup.files import adapter
from gateup.files.gguf_set import SPLIT_NAME
from gateup.files.header import listed
from gateup.files.opening import CONVERT_REMEDY

Kind = Literal["config", "index", "safetensors", "gguf", "adapter"]

INDEX = ".safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors", re.DOTALL)
# Files beside a model that are not the model.
_BESIDE = ("optimizer", "scheduler", "rng_state", "training_args", "adapter_model")


@dataclass(frozen=True, slots=True)
class Source:
    """files: the one to open, or every shard where there is no index. notes become problems."""

    kind: Kind
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return self.files[0]


def names_in(folder: Path) -> list[str]:
    """File names in a folder, sorted. Raises InputError."""
    try:
        return sorted(p.name for p in folder.iterdir() if p.is_file())
    except OSError as e:
        raise InputError(
            f"the folder cannot be read: {e.strerror or e}", where=str(folder)
        ) from None


def find_in_folder(folder: Path, *, cached: bool = False) -> Source:
    """The model in a folder: safetensors first, then GGUF, then a config.json alone.

    cached  a snapshot of the Hub's cache, where an index without any shard means that only the
            JSON files were fetched: the config.json alone then, with a note

    Raises InputError where there is none, several, or only pickles.
    """
    names = names_in(folder)
    weights = [
        n
        for n in names
        if n.endswith(".safetensors") and not n.startswith(_BESIDE) and not n.startswith(".")
    ]
    indexes = [n for n in names if n.endswith(INDEX)]
    if adapter.CONFIG in names and not weights and not indexes:
        return Source("adapter", (folder,))
    if cached and "config.json" in names and indexes and not weights:
        note = f"no shard of {indexes[0]} is in the cache: the figures are those of config.json"
        return Source("config", (folder / "config.json",), (note,))
    if "config.json" in names and (indexes or weights):
        return _safetensors(folder, indexes, weights)
    ggufs = _models(n for n in names if n.endswith(".gguf"))
    if len(ggufs) == 1:
        return Source("gguf", (folder / ggufs[0],))
    if ggufs:
        raise InputError(
            f"the folder holds {len(ggufs)} GGUF models: {listed(ggufs, 20)}",
            where=str(folder),
            remedy="give the path of the one you mean",
        )
    pickles = [n for n in names if n.endswith(PICKLES) and not n.startswith(_BESIDE)]
    if "config.json" in names:
        return Source("config", (folder / "config.json",), _pickle_notes(pickles))
    if weights or indexes:
        raise InputError(
            f"{(weights or indexes)[0]} has no config.json beside it",
            where=str(folder),
            expected="config.json in the same folder: it says what the tensors are",
            remedy="fetch the model's config.json into the folder",
        )
    if pickles:
        raise pickle_refusal(folder / pickles[0])
    raise _nothing(folder, names)


def _models(names: Iterable[str]) -> list[str]:
    """GGUF file names with each split set counted once (by its first part there)."""
    out: dict[str, str] = {}
    for name in names:
        if name.startswith(("mmproj", "imatrix")):  # a vision projector, calibration data
            continue
        match = SPLIT_NAME.fullmatch(name)
        out.setdefault(f"{match['stem']}|{match['count']}" if match else name, name)
    return list(out.values())


def _safetensors(folder: Path, indexes: Sequence[str], weights: Sequence[str]) -> Source:
    for name in ("model" + INDEX, *([indexes[0]] if len(indexes) == 1 else [])):
        if name in indexes:
            return Source("index", (folder / name,))
    if "model.safetensors" in weights:
        return Source("safetensors", (folder / "model.safetensors",))
    if len(weights) == 1 and not _SHARD.fullmatch(weights[0]):
        return Source("safetensors", (folder / weights[0],))
    sets: dict[tuple[str, str], list[str]] = {}
    for name in weights:
        if match := _SHARD.fullmatch(name):
            sets.setdefault((match[1], match[3]), []).append(name)
    if len(sets) != 1:
        raise InputError(
            f"the folder holds several safetensors files and no index: {listed([*weights], 20)}",
            where=str(folder),
            expected="model.safetensors, or model.safetensors.index.json with its shards",
            remedy="give the path of the one you mean",
        )
    ((stem, count), there) = next(iter(sets.items()))
    wanted = int(count)
    if len(there) != wanted:
        have = set(there)
        absent = [
            n
            for n in (f"{stem}-{i:05d}-of-{count}.safetensors" for i in range(1, wanted + 1))
            if n not in have
        ]
        raise InputError(
            f"{len(absent):,} of {wanted:,} shards are not there: {listed(absent)}",
            where=str(folder),
            remedy="fetch them, or open config.json itself to plan without the weights",
        )
    note = f"there is no index: the {wanted} shards were told by their names"
    return Source("safetensors", tuple(folder / n for n in there), (note,))


def _pickle_notes(pickles: Sequence[str]) -> tuple[str, ...]:
    if not pickles:
        return ()
    return (
        f"{pickles[0]} is a pickle, which gateup never opens: the figures are those of "
        f"config.json; to have the file's own, {CONVERT_REMEDY}",
    )


def pickle_refusal(path: Path) -> InputError:
    """The error for old-style weights."""
    remedy = CONVERT_REMEDY
    if path.name.startswith("consolidated."):
        remedy = (
            "convert it with transformers' convert_llama_weights_to_hf.py, which writes "
            "config.json and safetensors"
        )
    return InputError(
        f"{path.name} is a pickle, which can run code when it is opened; gateup never opens one",
        where=str(path),
        expected="safetensors or GGUF",
        remedy=remedy,
    )


def _nothing(folder: Path, names: Sequence[str]) -> InputError:
    inner = [p.name for p in islice(_subfolders(folder), 100) if _looks_like_model(p)]
    remedy = None
    if inner:
        remedy = "did you mean " + " or ".join(str(folder / n) for n in inner[:3]) + "?"
    return InputError(
        "the folder holds no model" if names else "the folder holds no files",
        where=str(folder),
        expected="config.json (with safetensors or alone), a .gguf file, or adapter_config.json",
        remedy=remedy,
    )


def _subfolders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir())


def _looks_like_model(folder: Path) -> bool:
    try:
        names = {p.name for p in folder.iterdir()}
    except OSError:  # a folder of someone else's
        return False
    return "config.json" in names or any(n.endswith(".gguf") for n in names)


def find_in_file(path: Path) -> Source:
    """What one file is the entrance to. Raises InputError."""
    name = path.name
    if name.endswith(".gguf") or _starts_with_gguf(path):
        return Source("gguf", (path,))
    if name in (adapter.CONFIG, adapter.WEIGHTS):
        return Source("adapter", (path.parent,))
    if name.endswith(INDEX):
        return _beside_config("index", path)
    if name.endswith(".safetensors"):
        return _beside_config("safetensors", path)
    if name.endswith(".json"):
        return Source("config", (path,))
    if name.endswith(PICKLES):
        raise pickle_refusal(path)
    raise InputError(
        f"{name} is no kind of file gateup reads",
        where=str(path),
        expected="config.json, .safetensors, .safetensors.index.json, .gguf, or a folder",
    )


def _beside_config(kind: Kind, path: Path) -> Source:
    if not (path.parent / "config.json").is_file():
        raise InputError(
            f"{path.name} has no config.json beside it",
            where=str(path),
            expected="config.json in the same folder: it says what the tensors are",
            remedy="fetch the model's config.json into the folder",
        )
    if kind == "safetensors" and _SHARD.fullmatch(path.name):
        # One shard of several: the whole model is meant, as for split GGUFs.
        return find_in_folder(path.parent)
    return Source(kind, (path,))


def _starts_with_gguf(path: Path) -> bool:
    """Whether a file without a telling name is a GGUF (as in Ollama's store)."""
    if "." in path.name or not path.is_file():  # opening a pipe would block
        return False
    try:
        with path.open("rb") as handle:
            return handle.read(4) == b"GGUF"
    except OSError:
        return False
