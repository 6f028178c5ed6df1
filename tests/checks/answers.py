"""What the tests of the rules ask: a preset's config, and the rules that find more than a note."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateup.checks.runner import check
from gateup.model import presets


def preset(name: str) -> dict[str, Any]:
    found = presets.find(name)
    assert found is not None
    return dict(found.config)


def rules(ref: Path) -> set[str]:
    return {f.rule for f in check(ref).findings if f.severity != "note"}
