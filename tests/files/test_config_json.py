from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateup.errors import ConfigError, GateupError, HeaderError, InputError
from gateup.files.config_json import MAX_CONFIG_BYTES, parse_json, read_json


def test_reads_an_object(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": [1, 2.5, null, true], "ü": "漢"}', encoding="utf-8")
    assert read_json(path) == {"a": [1, 2.5, None, True], "ü": "漢"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[1, 2]", "config.json is a list"),
        (b'"text"', "config.json is a string"),
        (b"3", "config.json is a number"),
        (b"null", "config.json is null"),
        (b"", "config.json is empty"),
        (b" \n ", "config.json is empty"),
        (b"{", "not JSON"),
        (b'{"a": 1,}', "not JSON"),
        (b'{"a": 1} x', "not JSON: Extra data"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' occurs twice in one object"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": -Infinity}', "-Infinity is not JSON"),
        (b'{"a": 1e999}', "the number 1e999 is too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a whole number has thousands of digits"),
        (b'{"a": "\xff"}', "the text is not UTF-8: byte 7 is wrong"),
        (b'\xef\xbb\xbf{"a": 1}', "not JSON"),
        (b'{"a": "\\ud800"}', "half of a surrogate pair"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"version https://git-lfs.github.com/spec/v1\noid x\n", "a Git LFS pointer"),
        (b"<!DOCTYPE html><html></html>", "an HTML page"),
    ],
)
def test_refuses(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as e:
        read_json(path)
    assert says in e.value.what
    assert str(path) in (e.value.where or "")


def test_names_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": 1,\n "b" 2}')
    with pytest.raises(ConfigError) as e:
        read_json(path)
    assert e.value.where == f"{path}, line 2, column 6"


def test_surrogate_pairs_are_text(tmp_path: Path) -> None:
    assert parse_json(b'"\\ud83d\\ude00"', "x") == "\U0001f600"


def test_refuses_a_large_file_unread(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as f:
        f.truncate(MAX_CONFIG_BYTES + 1)
    with pytest.raises(ConfigError, match="at most 4,194,304"):
        read_json(path)


def test_refuses_many_items_before_parsing() -> None:
    with pytest.raises(HeaderError, match="about 2,002 items"):
        parse_json(b"[" + b"{}," * 1000 + b"{}]", "x", error=HeaderError, max_items=2000)


def test_unreadable_paths(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_json(tmp_path / "none.json")
    with pytest.raises(InputError, match="is a folder"):
        read_json(tmp_path)
    with pytest.raises(InputError, match="a device or pipe"):
        read_json(Path("/dev/zero"))
    with pytest.raises(InputError, match=r"is not a file name|cannot be read"):
        read_json(Path("a\0b"))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200))
def test_only_our_errors_escape(data: bytes) -> None:
    try:
        value = parse_json(data, "x")
    except GateupError:
        return
    # What we take, the standard library takes as well.
    assert json.loads(data.decode()) == value


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(), x, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(_JSON)
def test_takes_what_is_json(value: object) -> None:
    try:
        data = json.dumps(value, allow_nan=False).encode()
    except ValueError:  # infinity
        return
    assert parse_json(data, "x") == value
