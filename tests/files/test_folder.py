from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateup.errors import InputError
from gateup.files.folder import find_in_file, find_in_folder

SHARDS = [f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)]


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("names", "kind", "file"),
    [
        (["config.json", "model.safetensors"], "safetensors", "model.safetensors"),
        (["config.json", "pytorch_model.bin", "model.safetensors"], "safetensors",
         "model.safetensors"),
        (["config.json", "weights.safetensors"], "safetensors", "weights.safetensors"),
        (["config.json", *SHARDS, "model.safetensors.index.json"], "index",
         "model.safetensors.index.json"),
        (["config.json", "model.safetensors.index.json"], "index", "model.safetensors.index.json"),
        (["config.json", *SHARDS, "consolidated.safetensors", "model.safetensors.index.json"],
         "index", "model.safetensors.index.json"),
        (["config.json", *SHARDS], "safetensors", SHARDS[0]),
        (["config.json", "model.safetensors", "x.gguf"], "safetensors", "model.safetensors"),
        (["config.json", "model.safetensors", "optimizer.safetensors"], "safetensors",
         "model.safetensors"),
        (["config.json", "tokenizer.json"], "config", "config.json"),
        (["x.gguf", "README.md"], "gguf", "x.gguf"),
        (["config.json", "x.gguf"], "gguf", "x.gguf"),
        (["x.gguf", "mmproj-x.gguf"], "gguf", "x.gguf"),
        (["x-00001-of-00002.gguf", "x-00002-of-00002.gguf"], "gguf", "x-00001-of-00002.gguf"),
        (["adapter_config.json", "adapter_model.safetensors"], "adapter", "."),
        (["adapter_config.json", "adapter_model.safetensors", "config.json"], "adapter", "."),
    ],
)  # fmt: skip
def test_folders(tmp_path: Path, names: list[str], kind: str, file: str) -> None:
    source = find_in_folder(fill(tmp_path, *names))
    assert (source.kind, source.path) == (kind, tmp_path / file)


def test_shards_without_an_index(tmp_path: Path) -> None:
    source = find_in_folder(fill(tmp_path, "config.json", *SHARDS))
    assert [p.name for p in source.files] == SHARDS
    assert source.notes == ("there is no index: the 3 shards were told by their names",)


def test_missing_shards_without_an_index(tmp_path: Path) -> None:
    with pytest.raises(InputError) as e:
        find_in_folder(fill(tmp_path, "config.json", SHARDS[0], SHARDS[2]))
    assert e.value.what == f"1 of 3 shards are not there: {SHARDS[1]}"


def test_a_pickle_beside_a_config_is_a_note(tmp_path: Path) -> None:
    source = find_in_folder(fill(tmp_path, "config.json", "pytorch_model.bin"))
    assert source.kind == "config"
    assert source.notes[0].startswith("pytorch_model.bin is a pickle, which gateup never opens")
    assert "save_pretrained" in source.notes[0]


@pytest.mark.parametrize(
    ("names", "what", "remedy"),
    [
        ([], "the folder holds no files", ""),
        (["README.md"], "the folder holds no model", ""),
        (["README.md", "inner/config.json"], "the folder holds no model", "did you mean "),
        (["pytorch_model.bin"], "pytorch_model.bin is a pickle, which can run code", "from_pretr"),
        (["consolidated.00.pth", "params.json"], "consolidated.00.pth is a pickle",
         "convert_llama_weights_to_hf.py"),
        (["model.safetensors"], "model.safetensors has no config.json beside it",
         "fetch the model's config.json"),
        (["a-q4.gguf", "a-q8.gguf"], "the folder holds 2 GGUF models: a-q4.gguf, a-q8.gguf",
         "give the path of the one you mean"),
        (["config.json", "a.safetensors", "b.safetensors"],
         "the folder holds several safetensors files and no index", "give the path"),
    ],
)  # fmt: skip
def test_refuses(tmp_path: Path, names: list[str], what: str, remedy: str) -> None:
    with pytest.raises(InputError) as e:
        find_in_folder(fill(tmp_path, *names))
    assert e.value.what.startswith(what)
    assert remedy in (e.value.remedy or "")


def test_files(tmp_path: Path) -> None:
    fill(tmp_path, "x.gguf", "config.json", "model.safetensors", "adapter_config.json", *SHARDS)
    fill(tmp_path, "model.safetensors.index.json")
    assert find_in_file(tmp_path / "x.gguf").kind == "gguf"
    assert find_in_file(tmp_path / "config.json").kind == "config"
    assert find_in_file(tmp_path / "model.safetensors").kind == "safetensors"
    assert find_in_file(tmp_path / "model.safetensors.index.json").kind == "index"
    assert find_in_file(tmp_path / SHARDS[1]).kind == "index"
    assert find_in_file(tmp_path / "adapter_config.json").path == tmp_path


def test_a_gguf_without_a_telling_name(tmp_path: Path) -> None:
    path = tmp_path / "sha256-abc"
    path.write_bytes(b"GGUF")
    assert find_in_file(path).kind == "gguf"
    path.write_bytes(b"none")
    with pytest.raises(InputError, match="is no kind of file gateup reads"):
        find_in_file(path)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_tensors_without_a_config(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"has no config\.json beside it"):
        find_in_file(fill(tmp_path, name) / name)


@pytest.mark.parametrize("name", ["a.bin", "a.pt", "a.pth", "a.ckpt"])
def test_pickles_are_never_opened(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="gateup never opens one"):
        find_in_file(fill(tmp_path, name) / name)


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is no kind of file"):
        find_in_file(tmp_path / "pipe")
