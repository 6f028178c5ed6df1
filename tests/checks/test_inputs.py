"""What lies beside a model or was named for its check: read, bounded, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateup.checks.inputs import Request, read_settings
from gateup.checks.runner import check
from gateup.cli import app
from gateup.errors import ConfigError, GateupError

Config = dict[str, Any]
Make = Callable[..., Any]


def test_settings_from_yaml_and_json(tmp_path: Path) -> None:
    yaml = tmp_path / "train.yaml"
    yaml.write_text("lora_rank: 8\nlora_target: [q_proj, v_proj]\nlearning_rate: 1.0e-4\n")
    assert read_settings(yaml) == {
        "lora_rank": 8,
        "lora_target": ["q_proj", "v_proj"],
        "learning_rate": 1e-4,
    }
    file = tmp_path / "train.json"
    file.write_text('{"r": 8}')
    assert read_settings(file) == {"r": 8}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "not YAML"),
        ("- 1\n- 2\n", "does not hold settings"),
        ("1: 2\n", "does not hold settings"),
        ("", "does not hold settings"),
        ("a: !!python/object/apply:os.system [ls]", "not YAML"),
        ("a: 2024-13-45\n", "a value cannot be read"),
        ("[" * 5000 + "]" * 5000, "nested more than 32 deep"),
        ("a: &a [1]\n" + "".join(f"b{i}: *a\n" for i in range(20)), "more than 16 aliases"),
        ("a: " + "x" * (300 << 10), "has 307,203 bytes"),
        (b"a: \xff", "not UTF-8"),
        ("a: 8\nb:\n  c: 1\n  c: 2\n", r"the key 'c' occurs twice \(line 4\)"),
        ("a: 8\n'a': 16\n", "the key 'a' occurs twice"),
        ("a: 0x" + "f" * 5000, "a number has 5,002 characters"),
        ("a: 1" + ":59" * 40_000, "a number has 120,001 characters"),
        ("a: 1" + ":59" * 400 + ".5", "a number has 1,203 characters"),
    ],
)
def test_broken_yaml(tmp_path: Path, text: str | bytes, message: str) -> None:
    file = tmp_path / "t.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=message) as e:
        read_settings(file)
    assert "t.yaml" in str(e.value)


def test_a_trainer_s_file_with_a_log_is_a_run_s_state(
    tmp_path: Path, write: Make, tiny: Config
) -> None:
    folder = write(tmp_path / "m", tiny)
    context = check(folder, trainer={"log_history": []}).context
    assert context is not None
    assert (context.trainer, context.trainer_state) == (None, {"log_history": []})
    (folder / "trainer_state.json").write_text('{"log_history": [{"loss": 1.0}]}')
    (folder / "generation_config.json").write_text('{"temperature": 0.5}')
    context = check(folder, trainer={"lora_rank": 8}).context
    assert context is not None
    assert context.trainer == {"lora_rank": 8}
    assert context.trainer_state == {"log_history": [{"loss": 1.0}]}
    assert context.generation == {"temperature": 0.5}
    assert context.source("generation") == "generation_config.json"


@pytest.mark.parametrize("tp", [-1, 1025])
def test_degrees_that_cannot_be(tp: int) -> None:
    with pytest.raises(GateupError):
        Request(tp=tp)


def test_merged_keys_are_no_duplicates(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("a: &a {x: 1}\nb: &b {y: 2}\nc:\n  <<: *a\n  <<: *b\n  x: 3\n")
    assert read_settings(file)["c"] == {"x": 3, "y": 2}


# --- wrong kinds of thing ---------------------------------------------------------------------


@pytest.fixture
def things(tmp_path: Path, tiny: Config, write_adapter: Make, write: Make) -> Path:
    """A folder with a model, its adapter, and what is none of them."""
    write(tmp_path / "model", tiny)
    write_adapter(tmp_path / "adapter", tiny)
    write_adapter(tmp_path / "cut", tiny)
    with (tmp_path / "cut/adapter_model.safetensors").open("r+b") as file:
        file.truncate(100)
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("none")
    (tmp_path / "text.txt").write_text("none")
    (tmp_path / "foo").mkdir()
    (tmp_path / "foo/config.json").write_text('{"architectures": ["FooForCausalLM"]}')
    return tmp_path


@pytest.mark.parametrize(
    ("adapter", "what"),
    [
        ("nothing", "there is no such adapter folder"),
        ("empty", "the adapter's folder holds no files"),
        ("other", "the adapter's folder has no adapter_config.json"),
        ("text.txt", "the adapter text.txt is a file that is no part of one"),
        ("model", "the adapter that was given is a model, not an adapter"),
        ("model/model.safetensors", "the adapter model.safetensors is a file that is no part"),
        ("cut", "adapter_model.safetensors is truncated"),
    ],
)
def test_an_adapter_that_is_none(things: Path, adapter: str, what: str) -> None:
    with pytest.raises(GateupError) as caught:
        check(things / "model", adapter=things / adapter)
    assert caught.value.what.startswith(what)
    assert str(caught.value.where).startswith(str(things / adapter))


@pytest.mark.parametrize(
    ("base", "what"),
    [
        ("empty", "the folder holds no files"),
        ("other", "the folder holds no model"),
        ("text.txt", "text.txt is no kind of file gateup reads"),
        ("adapter", "it is an adapter, not a model"),
        ("foo", "architecture 'FooForCausalLM' is not one gateup knows"),
        ("nothing", ""),
    ],
)
def test_a_base_that_is_none(things: Path, base: str, what: str) -> None:
    """Of an adapter's folder: one finding, which does not ask for what was given."""
    report = check(things / "adapter", base=things / base)
    (f,) = report.findings
    assert report.exit_code == 2
    assert "that was given cannot be opened: " in f.title
    assert what in f.title
    assert "--base" not in f.remedy
    assert "was trained on" in f.remedy
    assert str(f).count(what) == 1 or not what
    assert "does not hold what it should" not in f.cause
    with pytest.raises(GateupError, match="that was given"):  # beside a model
        check(things / "model", base=things / base)


def test_an_adapter_beside_a_model_is_no_base(things: Path) -> None:
    with pytest.raises(GateupError, match="that was given is an adapter, not a model") as caught:
        check(things / "model", base=things / "adapter")
    assert f"--adapter {things / 'adapter'}" in str(caught.value.remedy)


def test_an_adapter_on_another_base_is_looked_at_by_the_rules(things: Path) -> None:
    """As with --adapter: its own error would only ask for the base that was given."""
    mine = check(things / "adapter", base="llama-3-8b").findings
    other = check("llama-3-8b", adapter=things / "adapter").findings
    assert [f.title for f in mine] == [f.title for f in other]
    assert mine[0].title == "6 of 6 adapted modules do not fit llama-3-8b"


def test_an_unknown_architecture_is_no_broken_file(things: Path) -> None:
    (f,) = check(things / "foo").findings
    assert f.cause.startswith("Nothing is guessed")
    assert f.evidence[0].found == "cannot be used"


@pytest.mark.parametrize(
    ("argv", "title"),
    [
        (["model", "--adapter", "cut"], "adapter_model.safetensors is truncated"),
        (["model", "--adapter", "empty"], "the adapter's folder holds no files"),
        (["model", "--trainer", "text.txt"], "not JSON"),
        (["nothing"], "'nothing' is neither a file or folder here nor a preset"),
        (["model", "--tp", "0"], "--tp is 0"),
        ([], "no MODEL was given"),
    ],
)
def test_json_of_a_check_that_could_not_begin(
    things: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], title: str
) -> None:
    monkeypatch.chdir(things)
    done = CliRunner().invoke(app, ["check", *argv, "--json"])
    assert done.exit_code == 2
    document = json.loads(done.stdout)
    assert document["readable"] is False
    (f,) = document["findings"]
    assert f["title"].startswith(title)
    assert title in done.stderr


def test_the_command_takes_the_trainers_model(
    things: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(things)
    (things / "sft.yaml").write_text("model_name_or_path: ./model\nlora_target: all\n")
    done = CliRunner().invoke(app, ["check", "--trainer", "sft.yaml", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["model"]["name"] == "model"
