from __future__ import annotations

from pathlib import Path

import pytest

from gateup.errors import InputError
from gateup.files.hub import cache_folder, is_repo_id, snapshot

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def entry(cache: Path, *commits: str, main: str | None = None) -> Path:
    folder = cache / "models--owner--name"
    for commit in commits:
        (folder / "snapshots" / commit).mkdir(parents=True)
    if main is not None:
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text(main)
    return folder


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder() == Path("~/.cache/huggingface/hub").expanduser()
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/huggingface/hub")
    monkeypatch.setenv("HF_HOME", "/h")
    assert cache_folder() == Path("/h/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/c")
    assert cache_folder() == Path("/c")


def test_main_points_to_the_snapshot(cache: Path) -> None:
    folder = entry(cache, COMMIT, "f" * 40, main=COMMIT + "\n")
    assert snapshot("owner/name") == folder / "snapshots" / COMMIT


def test_the_only_snapshot_without_a_ref(cache: Path) -> None:
    folder = entry(cache, COMMIT)
    assert snapshot("owner/name") == folder / "snapshots" / COMMIT


def test_several_snapshots_without_main(cache: Path) -> None:
    entry(cache, "a" * 40, "b" * 40)
    with pytest.raises(InputError, match="2 snapshots and none of them is main"):
        snapshot("owner/name")


def test_not_in_the_cache(cache: Path) -> None:
    assert snapshot("owner/name") is None
    entry(cache, main=COMMIT)
    assert snapshot("owner/name") is None


@pytest.mark.parametrize(
    "ref", ["../../../etc", "..", "a/b", "", "x" * 300, "a\0b", "refs\\main", "."]
)
def test_refs_that_lead_elsewhere(cache: Path, ref: str) -> None:
    entry(cache, COMMIT, main=ref)
    with pytest.raises(InputError) as e:
        snapshot("owner/name")
    assert e.value.what.startswith("refs/main holds ")
    assert e.value.where == str(cache / "models--owner--name" / "refs" / "main")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("owner/name", True),
        ("meta-llama/Llama-3.1-8B", True),
        ("01-ai/Yi_1.5", True),
        ("owner", False),
        ("a/b/c", False),
        ("../name", False),
        ("owner/..", False),
        ("owner/.hidden", False),
        ("owner/na--me", False),
        ("owner/na..me", False),
        ("owner/name.", False),
        ("owner/name\n", False),
        ("owner/na me", False),
        ("ownér/name", False),
        ("owner/" + "n" * 300, False),
        ("", False),
    ],
)
def test_repo_ids(text: str, answer: bool) -> None:
    assert is_repo_id(text) is answer
