"""The local Hugging Face cache, read as a folder: no network, no huggingface_hub.

Layout: <cache>/models--OWNER--NAME/refs/main holds a commit; snapshots/<commit>/ has the files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from gateup.errors import InputError
from gateup.files.header import clip, listed
from gateup.files.opening import open_regular

# The Hub's rule for names: letters, digits, "-", "_", "."; neither "--" nor ".." nor at the ends.
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9_]|[-.](?![-.]))*"
REPO_ID = re.compile(rf"{_PART}/{_PART}")
_COMMIT = re.compile(r"[A-Za-z0-9]{1,64}")
_MAX_REF_BYTES = 256


def is_repo_id(text: str) -> bool:
    """Whether `text` could be OWNER/NAME on the Hub."""
    return (
        len(text) <= 200
        and REPO_ID.fullmatch(text) is not None
        and not text.endswith((".", "-", ".git"))
    )


def cache_folder() -> Path:
    """Where the cache is: HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]).expanduser() / "hub"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "huggingface" / "hub"


def download_command(repo_id: str) -> str:
    """What fetches enough for a plan (headers need the weights' files as well)."""
    return (
        f'`hf download {repo_id} --include "*.json"` for the figures of its config, '
        f'with `"*.safetensors"` added for those of its files'
    )


def snapshot(repo_id: str) -> Path | None:
    """The folder of the cached snapshot of OWNER/NAME; None where the cache does not have it.

    Raises InputError where the cache's entry is damaged.
    """
    if not is_repo_id(repo_id):
        return None
    return snapshot_in(cache_folder() / ("models--" + repo_id.replace("/", "--")))


def snapshot_in(entry: Path) -> Path | None:
    """The snapshot that a cache entry's refs/main points to, or its only one."""
    snapshots = entry / "snapshots"
    if not snapshots.is_dir():
        return None
    ref = entry / "refs" / "main"
    if ref.is_file():
        commit = _commit(ref)
        if (snapshots / commit).is_dir():
            return snapshots / commit
    there = sorted(p.name for p in snapshots.iterdir() if p.is_dir())
    if not there:
        return None
    if len(there) == 1:
        return snapshots / there[0]
    raise InputError(
        f"the cache has {len(there)} snapshots and none of them is main: {listed(there)}",
        where=str(snapshots),
        remedy="give the path of the one you mean",
    )


def _commit(ref: Path) -> str:
    handle, size = open_regular(ref)
    with handle:
        text = handle.read(_MAX_REF_BYTES).decode("utf-8", "replace").strip()
    if size > _MAX_REF_BYTES or not _COMMIT.fullmatch(text):
        raise InputError(
            f"refs/main holds {clip(text)}",
            where=str(ref),
            expected="a commit",
            remedy="delete the file and fetch the model again",
        )
    return text
