"""Edits found by trial: the fewest that fit, none where none fits, bounded in time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gateup
from gateup.checks import edits
from gateup.checks.edits import find_edit

Config = dict[str, Any]
Make = Callable[..., Any]


def test_nothing_to_edit(tmp_path: Path, write: Make, tiny: Config) -> None:
    assert find_edit(gateup.open(write(tmp_path / "m", tiny))) is None
    assert find_edit(gateup.open("llama-3-8b")) is None


def test_what_an_edit_does_not_explain_stays(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config
) -> None:
    """One field is wrong and a tensor is missing besides."""
    tensors = tensors_of(tiny)
    del tensors["model.norm.weight"]
    folder = write(tmp_path / "m", {**tiny, "vocab_size": 100}, tensors)
    edit = find_edit(gateup.open(folder))
    assert edit is not None
    assert edit.changes == {"vocab_size": (100, 160)}
    assert [(m.kind, m.names) for m in edit.mismatches] == [("absent", ("model.norm.weight",))]


def test_an_absent_field_that_its_default_stands_for(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config
) -> None:
    config = {k: v for k, v in tiny.items() if k != "num_key_value_heads"}
    edit = find_edit(gateup.open(write(tmp_path / "m", config, tensors_of(tiny))))
    assert edit is not None
    assert edit.changes == {"num_key_value_heads": (None, 2)}


def test_no_edit_that_leaves_a_shape_over(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config
) -> None:
    tensors = {**tensors_of(tiny), "model.layers.1.self_attn.q_proj.weight": (48, 64)}
    folder = write(tmp_path / "m", {**tiny, "vocab_size": 100}, tensors)
    assert find_edit(gateup.open(folder)) is None


def test_trials_are_bounded(
    tmp_path: Path,
    write: Make,
    tensors_of: Make,
    tiny: Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Large checkpoints get a few trials, each of which matches all their headers."""
    tried = []
    real = edits._try

    def count(checkpoint: Any, config: Config) -> Any:
        tried.append(config)
        return real(checkpoint, config)

    monkeypatch.setattr(edits, "_try", count)
    monkeypatch.setattr(edits, "MAX_MATCHED", 30)
    tensors = {n: tuple(d + 1 for d in s) for n, s in tensors_of(tiny).items()}
    assert find_edit(gateup.open(write(tmp_path / "m", tiny, tensors))) is None
    assert 0 < len(tried) <= 4
