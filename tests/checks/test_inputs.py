"""What lies beside a model or was named for its check: read, bounded, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateup.checks.inputs import Request, read_settings
from gateup.checks.runner import check
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
