"""Models by key; uploads are bounded and parsed as JSON only."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from gateup.errors import GateupError
from gateup.lab.errors import LabError
from gateup.lab.models import DEFAULT, MAX_UPLOADS, NAMED, Models
from gateup.model import presets

CONFIG = dict(presets.PRESETS["llama-3.2-1b"].config)


def _bytes(**changes: object) -> bytes:
    return json.dumps({**CONFIG, **changes}).encode()


def test_an_upload_is_opened_like_a_file_and_leaves_none() -> None:
    models = Models()
    key = models.upload("../../mine.json", _bytes(num_hidden_layers=3))
    opened = models.open(key)
    assert (opened.spec.num_layers, opened.spec.name, opened.path) == (3, "mine.json", None)
    assert models.labels()[key] == "★ mine.json"
    assert models.upload("mine.json", _bytes(num_hidden_layers=3)) == key


def test_equal_contents_under_two_names_are_two_models() -> None:
    models = Models()
    keys = [models.upload(name, _bytes()) for name in ("one.json", "two.json")]
    assert len(set(keys)) == 2
    assert [models.open(key).spec.name for key in keys] == ["one.json", "two.json"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps(CONFIG), "not"),
        (b"[1]", "object"),
        (b"", ""),
        (b'{"architectures": ["NoSuchForCausalLM"], "model_type": "nosuch"}', "nosuch"),
        (b"x" * ((1 << 20) + 1), "1,048,577 bytes"),
    ],
)
def test_what_is_no_config_is_refused(data: bytes, message: str) -> None:
    models = Models()
    with pytest.raises(GateupError, match="(?i)" + message) as caught:
        models.upload("mine.json", data)
    assert "/tmp" not in str(caught.value)  # the reader never named our temporary folder
    assert models.labels().keys() == Models().labels().keys()


def test_old_uploads_make_room() -> None:
    models = Models()
    keys = [models.upload("c.json", _bytes(num_hidden_layers=n)) for n in range(1, MAX_UPLOADS + 2)]
    assert not models.knows(keys[0])
    assert models.knows(keys[-1])
    assert models.open(keys[0]).spec.name == DEFAULT


def test_a_key_is_never_a_path(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(_bytes())
    models = Models()
    assert not models.knows(str(tmp_path))
    assert models.open(str(tmp_path)).spec.name == DEFAULT


def test_the_model_of_the_command_line_comes_first(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(_bytes(num_hidden_layers=2))
    models = Models(str(tmp_path))
    assert models.default == NAMED == next(iter(models.labels()))
    assert models.open("nosuch").spec.num_layers == 2
    with pytest.raises(GateupError):
        Models(str(tmp_path / "nosuch"))


def test_the_limit_is_named() -> None:
    with pytest.raises(LabError) as caught:
        Models().upload("c.json", b" " * (2 << 20))
    assert caught.value.expected == "at most 1,048,576"


def test_what_has_weights_can_be_run(tmp_path: Path) -> None:
    assert set(Models().runnable()) <= {"smollm2"}
    (tmp_path / "config.json").write_bytes(_bytes())
    named = Models(str(tmp_path))
    assert NAMED in named.labels()
    assert NAMED not in named.runnable()
