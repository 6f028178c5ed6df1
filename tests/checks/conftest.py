"""Contexts for rules without files: a spec, headers as a file would give them, settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateup.checks.context import Context
from gateup.files.checkpoint import Checkpoint
from gateup.model.families import build_spec


def _described(config: dict[str, Any], **parts: Any) -> Context:
    spec = build_spec(config, where="test", name="test")
    checkpoint = Checkpoint(
        spec, "config", Path("model/config.json"), (), None, "config.json", None
    )
    return Context(checkpoint, **parts)


@pytest.fixture
def described() -> Callable[..., Context]:
    """(config, parts of the context) -> a context without weights."""
    return _described
